"""Tensors, models and runs as notebooks show them."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest

import bf16codecs
from based_models import NAMES, write_steps
from bf16codecs.convert import safetensors_to_hdf5, safetensors_to_run, safetensors_to_zarr
from bf16codecs.model import html
from bf16codecs.model.tensor import LazyTensor
from lazy_models import weights, write_safetensors, write_shards, write_store
from servers import serving

NAME = "model.layers.0.mlp.up_proj.weight"


class Page(HTMLParser):
    """A parsed page of HTML, whose tags have to be closed."""

    EMPTY = {"br"}

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(self.texts)

    @property
    def rows(self):
        return sum(tag == "tr" for tag, _ in self.tags)

    @property
    def has_picture(self):
        return any(tag == "svg" for tag, _ in self.tags)


def shown(thing):
    return Page(thing._repr_html_())


@pytest.fixture(params=["safetensors", "zarr", "hdf5", "based"])
def path(request, tmp_path, demo_model):
    if request.param == "safetensors":
        return demo_model
    if request.param == "hdf5":
        safetensors_to_hdf5(demo_model, tmp_path / "m.h5")
        return tmp_path / "m.h5"
    base = demo_model if request.param == "based" else None
    safetensors_to_zarr(demo_model, tmp_path / "m.zarr", base=base)
    return tmp_path / "m.zarr"


def test_a_model(path, demo_model):
    with bf16codecs.open_model(path) as model:
        page = shown(model)
        names = model.keys()
    assert page.has_picture
    assert str(path) in page.text
    assert "492384 in 39 tensors" in page.text
    assert all(name in page.texts for name in names)
    assert re.search(r"Exponents: 2\.\d\d of 8 bits; \d+,\d+ of 492,384 BF16 values", page.text)
    assert ("stored" in page.text) == (path != demo_model)


def test_a_tensor(path):
    with bf16codecs.open_model(path) as model:
        page = shown(model[NAME])
    assert page.has_picture
    assert page.texts[0] == NAME
    assert "256x96 BF16: 24576 values, 49.15 kB" in page.texts
    assert "24,576 of 24,576 BF16 values looked at" in page.text


def test_runs(tmp_path, demo_model):
    safetensors_to_run(list(write_steps(tmp_path, demo_model).values()), tmp_path / "run.zarr")
    with bf16codecs.open_run(tmp_path / "run.zarr") as run:
        page = shown(run)
        assert "a run of 3 steps" in page.text
        assert "steps: 300, 399, 400" in page.text
        assert page.has_picture
        page = shown(run[NAMES[0]])
        assert "3x256x96 BF16: 73728 values, 147.46 kB" in page.texts
        assert "24,576 of 73,728" in page.text
        assert shown(run[399]).has_picture
        assert "step 399 of a run" in shown(run[399]).text
        assert "24,576 of 24,576" in shown(run[399][NAMES[0]]).text


def test_of_a_run_the_last_step_that_has_a_tensor_is_sampled(tmp_path):
    """Steps without the tensor have only fill values."""
    steps = []
    for step, names in enumerate(("ab", "ab", "b")):
        arrays = {name: weights((40, 3), seed=step) for name in names}
        steps.append(write_safetensors(tmp_path / f"step-{step}.safetensors", arrays))
    safetensors_to_run(steps, tmp_path / "run.zarr")
    with bf16codecs.open_run(tmp_path / "run.zarr") as run:
        for name, step in (("a", 1), ("b", 2)):
            found = run[name].sample(1 << 20, 4)
            assert found.tobytes() == weights((40, 3), seed=step).tobytes()
            assert "not finite" not in shown(run[name]).text


def test_a_sample_is_of_evenly_spread_parts(tmp_path):
    numbers = np.arange(1 << 12, dtype="<f4").reshape(64, 64)
    with bf16codecs.open_model(write_store(tmp_path / "m.zarr", {"w": numbers})) as model:
        found = model["w"].sample(64, 4).view("<f4")
        assert np.diff(found.reshape(4, 4)).tolist() == [[1] * 3] * 4
        assert found[::4].tolist() == [510, 1534, 2558, 3582]
        whole = model["w"].sample(1 << 20, 8).view("<f4")
        assert whole.tobytes() == numbers.tobytes()


def test_little_of_a_large_tensor_is_read(tmp_path, reads):
    arrays = {"w": weights((5000, 1000))}
    with bf16codecs.open_model(write_safetensors(tmp_path / "m.safetensors", arrays)) as model:
        page = shown(model["w"])
        assert "131,072 of 5,000,000 BF16 values" in page.text
        shown(model)
    lengths = [stop - start for _, ranges in reads for start, stop in ranges]
    assert max(lengths) == 1 << 15
    assert sum(lengths) < (2 << 18) + 100, "and the header"


def test_expensive_tensors_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("bf16codecs.model.tensor._SAMPLE_WORK", 1000)
    path = write_store(tmp_path / "m.zarr", {"w": weights((300, 300))}, codec="zstd")
    with bf16codecs.open_model(path) as model:
        page = shown(model["w"])
        assert not page.has_picture
        assert "No histogram" in page.text
        assert "300x300 BF16" in page.text
        assert not shown(model).has_picture


def test_names_are_no_markup(tmp_path):
    name = "<script>alert('&amp;')</script>\n\x1b[31m"
    path = write_safetensors(tmp_path / "<b>.safetensors", {name: weights((9, 9))})
    with bf16codecs.open_model(path) as model:
        for thing in (model, model[name], model.info()):
            page = shown(thing)
            assert not {"script", "b"} & {tag for tag, _ in page.tags}
        assert "<script>alert('&amp;')</script>\\n\\x1b[31m" in shown(model[name]).texts


def test_many_tensors_are_a_few_rows(tmp_path, monkeypatch):
    arrays = {f"w.{i}": weights((4, 4), seed=i) for i in range(1200)}
    path = write_safetensors(tmp_path / "m.safetensors", arrays)
    with bf16codecs.open_model(path) as model:
        for thing, above in ((model, 1), (model.info(), 1)):
            page = shown(thing)
            assert "w.199" in page.texts
            assert "w.200" not in page.texts
            assert "and 1,000 more" in page.text
            assert page.rows - above - html.MOST_ROWS - 1 in (0, 3)
        assert shown(model).has_picture
        assert len(model.info().table()["name"]) == 1200


def test_no_tensors(tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", {})
    with bf16codecs.open_model(path) as model:
        assert "0 tensors" in shown(model).text
        assert not shown(model).has_picture
        assert model.info().table() == {}


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.full((3, 4), np.nan, "float32"), "100 % not finite"),
        (np.zeros((3, 4), "float32"), "100 % zero or subnormal"),
        (np.array(1.5, "float16"), "scalar F16: 1 value"),
        (np.zeros((0, 4), "float32"), "0x4 F32: 0 values"),
        (np.arange(5), "5 I64: 5 values"),
    ],
    ids=["NaN", "zeros", "scalar", "empty", "integers"],
)
@pytest.mark.parametrize("kind", ["safetensors", "zarr"])
def test_strange_tensors(tmp_path, array, text, kind):
    path = write_safetensors(tmp_path / "m.safetensors", {"w": array})
    if kind == "zarr":
        safetensors_to_zarr(path, tmp_path / "m.zarr")
        path = tmp_path / "m.zarr"
    with bf16codecs.open_model(path) as model:
        page = shown(model["w"])
        assert text in page.text
        assert page.has_picture == (text == "scalar F16: 1 value")
        assert "w" in shown(model).texts


def test_exponents_of_all_powers_fit(tmp_path):
    bits = np.arange(1 << 16, dtype="<u2").view(weights((1,)).dtype)
    with bf16codecs.open_model(write_safetensors(tmp_path / "m.safetensors", {"w": bits})) as model:
        text = model["w"]._repr_html_()
    places = [float(x) for x in re.findall(r"M(-?[\d.]+) \d", text)]
    assert 0 <= min(places[:-1]) < max(places) < 384
    assert "2⁻¹²⁶" in text
    assert "2¹²⁷" in text


def test_damaged_chunks_break_nothing(tmp_path, demo_model):
    safetensors_to_zarr(demo_model, tmp_path / "m.zarr")
    for chunk in (p for p in (tmp_path / "m.zarr").rglob("*") if p.is_file()):
        if chunk.name != "zarr.json":
            content = bytearray(chunk.read_bytes())
            content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
            chunk.write_bytes(content)
    with bf16codecs.open_model(tmp_path / "m.zarr") as model:
        for thing in (model, model[NAME]):
            page = shown(thing)
            assert not page.has_picture
            assert re.search("damaged|cannot|not ", page.text)
            assert NAME in page.texts


@pytest.mark.parametrize("kind", ["zarr", "hdf5", "safetensors"])
def test_files_that_are_gone_break_nothing(tmp_path, demo_model, kind):
    path = tmp_path / {"zarr": "m.zarr", "hdf5": "m.h5"}.get(kind, "m.safetensors")
    if kind == "safetensors":
        shutil.copy(demo_model, path)
    else:
        {"zarr": safetensors_to_zarr, "hdf5": safetensors_to_hdf5}[kind](demo_model, path)
    with bf16codecs.open_model(path) as model:
        tensor = model[NAME]
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.write_bytes(b"")
        assert NAME in shown(model).texts
        assert NAME in shown(tensor).texts


def test_closed_models_show_their_state(tmp_path, demo_model):
    safetensors_to_run([demo_model], tmp_path / "run.zarr", steps=[7])
    model, run = bf16codecs.open_model(demo_model), bf16codecs.open_run(tmp_path / "run.zarr")
    step = run[7]
    things = [model, run, step, model[NAME], run[NAME], step[NAME]]
    model.close()
    run.close()
    for thing in things:
        page = shown(thing)
        assert "closed" in page.text
        assert NAME in page.texts
        assert ("BF16" in page.text) == isinstance(thing, LazyTensor)
    assert repr(run) == f"<Run {tmp_path / 'run.zarr'}: 1 step, 39 tensors, closed>"
    assert repr(model) == f"<Model {demo_model}: 39 tensors, closed>"
    assert repr(step) == f"<Model {tmp_path / 'run.zarr'}@7: 39 tensors, closed>"
    for closed in (model, run):
        with pytest.raises(ValueError, match="is closed"):
            closed.info()


def test_at_an_address_no_values_are_read(tmp_path, demo_model):
    pytest.importorskip("aiohttp")
    safetensors_to_zarr(demo_model, tmp_path / "m.zarr")
    with serving(tmp_path) as server, bf16codecs.open_model(f"{server.url}/m.zarr") as model:
        before = len(server.requests)
        page = shown(model[NAME])
        assert len(server.requests) == before
        assert "256x96 BF16" in page.text
        assert "values are not read" in page.text
        page = shown(model)
        assert len(server.requests) <= before + 2
        assert "492384 in 39 tensors" in page.text
        assert not page.has_picture


def test_of_many_files_at_an_address_no_headers_are_read(tmp_path):
    pytest.importorskip("aiohttp")
    shards = [{f"w.{i}": weights((9, 9), seed=i)} for i in range(3)]
    safetensors_to_zarr(write_shards(tmp_path / "shards", shards), tmp_path / "m.zarr")
    with serving(tmp_path) as server, bf16codecs.open_model(f"{server.url}/m.zarr") as model:
        server.clear()
        page = shown(model)
        assert not server.requests
        assert "m.zarr: 3 tensors" in page.text
        assert {"w.0", "w.2", "9x9", "162 B"} < set(page.texts)


def test_values_of_a_base_at_an_address_are_not_read(tmp_path, demo_model):
    pytest.importorskip("aiohttp")
    safetensors_to_zarr(demo_model, tmp_path / "m.zarr")
    with serving(tmp_path) as server:
        fine = tmp_path / "fine.zarr"
        safetensors_to_zarr(demo_model, fine, base=f"{server.url}/m.zarr")
        with bf16codecs.open_model(fine) as model:
            server.clear()
            for thing in (model, model[NAME]):
                assert "values are not read" in shown(thing).text
            assert not server.requests


def test_no_colour_of_its_own(demo_model):
    """It is legible on every background of a notebook."""
    with bf16codecs.open_model(demo_model) as model:
        text = model._repr_html_() + model[NAME]._repr_html_()
    assert not re.search(r"#[0-9a-f]{3}|rgb|background:(?!none)|: *(white|black)", text)
    assert "currentColor" in text
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
