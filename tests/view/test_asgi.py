"""The page's requests, and clients that may send them."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

import bf16codecs
from bf16codecs.convert import append_to_run, safetensors_to_zarr
from lazy_models import weights, write_safetensors
from servers import serving
from viewing import viewing

NAME = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def client(store):
    with viewing(store) as client:
        yield client


def test_contents(client, store):
    about = client.ask("model")
    assert about["where"] == str(store)
    assert about["steps"] == ["model.zarr"]
    assert about["base"] is None
    assert about["is_remote"] is False
    found = client.ask("contents", step="model.zarr")
    with bf16codecs.open_model(store) as model:
        assert [row["name"] for row in found["tensors"]] == model.keys()
    assert {row["kind"] for row in found["tensors"]} >= {"mlp", "attention", "norm", "embedding"}
    assert found["nbytes"] > found["stored_nbytes"] > 0


def test_a_tensor_and_its_statistics(client):
    about = client.ask("tensor", step="model.zarr", tensor=NAME)
    assert about["shape"] == [about["rows"], about["columns"]]
    found = client.ask("statistics", step="model.zarr", tensor=NAME)
    assert 2 < found["statistics"]["entropies"]["exponent"] < 3
    assert sum(found["statistics"]["exponents"]["counts"]) == found["size"]
    assert sum(found["histogram"]["counts"]) > 0.99 * found["size"]
    assert found["statistics"]["bit_labels"][:3] == ["s", "e7", "e6"]
    assert found["scales"]["rows"]["count"] == about["rows"]


def test_pictures(client, store):
    with bf16codecs.open_model(store) as model:
        values = model[NAME][10:30, 5:25].astype(np.float32)
    header, body = client.picture(
        step="model.zarr", tensor=NAME, rows="10:30", columns="5:25", height=100, width=100
    )
    assert (header["height"], header["width"], header["is_whole"]) == (20, 20, True)
    cells = np.frombuffer(body, "<f4", 400)
    np.testing.assert_array_equal(cells.reshape(20, 20), values)
    assert len(body) == 4 * (400 + 20 + 20) + 400
    assert not any(body[-400:])
    assert len(header["texts"]) == 400


def test_bad_questions(client):
    tensor = {"step": "model.zarr", "tensor": NAME}
    for path, query, status, told in (
        ("contents", {}, 400, "no step"),
        ("contents", {"step": "7"}, 404, "'7'"),
        ("tensor", {"step": "model.zarr", "tensor": "nope"}, 404, "no tensor 'nope'"),
        ("picture", {**tensor, "rows": "x"}, 400, "rows must be like"),
        ("picture", {**tensor, "rows": "9:3"}, 400, "rows 9:3"),
        ("picture", {**tensor, "rows": "\u0661:9"}, 400, "rows must"),
        ("picture", {**tensor, "width": "0"}, 400, "width must be"),
        ("picture", {**tensor, "width": "9" * 99}, 400, "width must"),
        ("picture", {**tensor, "show": "x"}, 400, "show must be one"),
        ("picture", {**tensor, "show": "changed"}, 400, "no against"),
        ("changes", {"step": "model.zarr", "against": "x"}, 404, "'x'"),
    ):
        assert told in client.ask(path, status, **query)["error"], (path, query)


def test_a_model_that_is_gone_names_no_other_file(tmp_path):
    path = write_safetensors(tmp_path / "model.safetensors", {"a": weights((4, 4))})
    write_safetensors(tmp_path / "model-secret.safetensors", {"a": weights((4, 4))})
    with viewing(path) as client:
        path.unlink()
        error = client.ask("model", 500)["error"]
    assert error == f"{path}: No such file or directory"


def test_other_hosts_are_refused(client):
    port = client.address.rstrip("/").rpartition(":")[2]
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "[::1]", ""):
        for path in ("/", "/api/model", "/page/main.js"):
            status, _, body = client.get(path, {"Host": host})
            assert status == 400, host
            assert b"tensor" not in body
    for host in ("127.0.0.1", f"localhost:{port}", "localhost:9999"):
        assert client.get("/api/model", {"Host": host})[0] == 200


def test_pages_of_other_sites_are_refused(client):
    for site in ("cross-site", "same-site"):
        status, _, body = client.get("/api/model", {"Sec-Fetch-Site": site})
        assert status == 403
        assert b"where" not in body
    assert client.get("/api/model", {"Sec-Fetch-Site": "same-origin"})[0] == 200


def test_headers_keep_the_page_to_itself(client):
    for path in ("/", "/page/main.js", "/api/model", "/nothing"):
        _, headers, _ = client.get(path)
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


def test_nothing_else_is_served(client, store):
    outside = ["/etc/passwd", "/page/../server.py", "/page/%2e%2e/server.py", "/page/", "/api/",
               "/page/..%2f..%2f_base%2fversion.py", f"/page/{store}", "/zarr.json"]  # fmt: skip
    for path in outside:
        status, _, body = client.get(path)
        assert status in (404, 405, 400), path
        assert b"import" not in body
    assert client.get("/")[0] == 200


def test_the_page_names_no_other_place(client):
    for name in ("", "page/page.css", "page/main.js", "page/tensor.js", "page/heat.js"):
        _, _, body = client.get(f"/{name}")
        assert body
        assert b"http://" not in body
        assert b"https://" not in body


def test_steps_that_are_appended_are_seen_once_the_page_is_loaded_again(tmp_path):
    arrays = {"w": weights((64, 32))}
    for step in (1, 2):
        write_safetensors(tmp_path / f"m-step{step}.safetensors", {"w": arrays["w"] * step})
    target = tmp_path / "run.zarr"
    append_to_run(tmp_path / "m-step1.safetensors", target)
    with viewing(target) as client:
        assert client.ask("model")["steps"] == ["1"]
        append_to_run(tmp_path / "m-step2.safetensors", target)
        assert client.ask("model")["steps"] == ["1", "2"]
        found = client.ask("statistics", step="2", tensor="w", against="1")
        assert found["statistics"]["change"]["changed"] == 1
        assert client.ask("changes", step="2", against="1")["changes"]["w"]["changed"] == 1
        steps = client.ask("history", tensor="w")["steps"]
        assert [(own["step"], own["changed"]) for own in steps] == [("1", None), ("2", 1.0)]


def test_several_models_and_a_base(tmp_path):
    paths = []
    for n, folder in enumerate(("a", "b", "c")):
        (tmp_path / folder).mkdir()
        tensors = {"w": weights((32, 32), seed=n), "only" + folder: weights((3,))}
        paths.append(write_safetensors(tmp_path / folder / "model.safetensors", tensors))
    with viewing(*paths[:2], base=paths[2]) as client:
        about = client.ask("model")
        assert about["steps"] == ["model.safetensors", "model.safetensors (2)"]
        assert about["base"] == "base model.safetensors"
        query = {"step": "model.safetensors (2)", "tensor": "onlyb"}
        told = client.ask("picture", 400, **query, show="changed", against=about["base"])
        assert "no tensor of this name, shape and dtype" in told["error"]
        assert client.ask("tensor", **query)["steps"] == ["model.safetensors (2)"]
        client.ask("statistics", **query, against=about["base"])


def test_names_are_data(tmp_path):
    name = "<script>alert(1)</script>&\"'/..%2f?#🎈.weight"
    path = write_safetensors(tmp_path / "m.safetensors", {name: weights((4, 4))})
    with viewing(path) as client:
        found = client.ask("contents", step="m.safetensors")
        assert [row["name"] for row in found["tensors"]] == [name]
        assert client.ask("tensor", step="m.safetensors", tensor=name)["rows"] == 4
        _, headers, _ = client.get("/api/contents?step=m.safetensors")
        assert headers["content-type"] == "application/json"


def test_tensors_without_values(tmp_path):
    arrays = {"empty": weights((0, 4)), "one": weights((1,)), "nan": np.full((8, 8), np.nan, "f4")}
    path = write_safetensors(tmp_path / "m.safetensors", arrays)
    with viewing(path) as client:
        step = {"step": "m.safetensors"}
        assert client.ask("tensor", **step, tensor="empty")["rows"] == 0
        assert "no values" in client.ask("picture", 400, **step, tensor="empty")["error"]
        for name in arrays:
            found = client.ask("statistics", **step, tensor=name)
            assert found["size"] == arrays[name].size
        header, _ = client.picture(**step, tensor="nan")
        assert header["texts"] == ["nan"] * 64


def test_a_remote_store_is_read_in_parts(tmp_path):
    pytest.importorskip("aiohttp")
    values = weights((12288, 1024))
    source = write_safetensors(tmp_path / "m.safetensors", {"w": values})
    safetensors_to_zarr(source, tmp_path / "m.zarr")
    with serving(tmp_path) as server, viewing(f"{server.url}/m.zarr") as client:
        client.ask("contents", step="m.zarr")
        server.clear()
        header, body = client.picture(step="m.zarr", tensor="w", rows="70:90", columns="0:64")
        assert header["is_whole"]
        cells = np.frombuffer(body, "<f4", 20 * 64).reshape(20, 64)
        np.testing.assert_array_equal(cells, values[70:90, :64].astype("f4"))
        assert sum(server.sent) < 500_000
        server.clear()
        header, _ = client.picture(step="m.zarr", tensor="w")
        assert not header["is_whole"]
        assert sum(server.sent) < values.nbytes / 2


def test_a_store_that_vanishes_is_reported(tmp_path):
    source = write_safetensors(tmp_path / "m.safetensors", {"w": weights((64, 64))})
    with viewing(source) as client:
        client.ask("model")
        source.unlink()
        assert "m.safetensors" in client.ask("model", 500)["error"]
        assert client.ask("contents", step="m.safetensors")["tensors"], "what was opened before"


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux")
def test_what_was_opened_before_is_closed(tmp_path, demo_model):
    path = tmp_path / "model.zarr.zip"
    safetensors_to_zarr(demo_model, path)

    def count_open():
        gc.collect()
        links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        return sum(os.path.realpath(link) == str(path) for link in links)

    with viewing(path) as client:
        client.ask("model")
        before = count_open()
        assert before
        for _ in range(5):
            client.ask("contents", step=client.ask("model")["steps"][0])
            client.picture(step="model.zarr.zip", tensor=NAME)
        assert count_open() == before
    assert not count_open()
