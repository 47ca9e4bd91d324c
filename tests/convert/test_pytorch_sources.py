"""Models that `torch.save` wrote become stores, and come back byte for byte."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bf16codecs import open_model
from bf16codecs.convert import verify_store, zarr_to_safetensors
from bf16codecs.errors import LimitError, StoreError
from bf16codecs.safetensors import read_header
from bf16codecs.store.outline import Layout, Region, make_outline, parse_outline
from edit_store import edit_json
from invoked import CONVERTERS, done, info_table, refused
from looping import noted
from reference_store import ReferenceStore
from round_trips import assert_comes_back, stored
from torch_files import FILES, call, pickled, plain, storage, tensor, write_older, write_zip

STATE = ["0.bias", "0.weight", "1.bias", "1.num_batches_tracked"]
STATE += ["1.running_mean", "1.running_var", "1.weight"]
MATRIX = np.arange(12, dtype="f4").tobytes()


@pytest.mark.parametrize("name", sorted(path.name for path in FILES.iterdir()))
def test_files_of_torch_come_back(name: str, tmp_path: Path) -> None:
    source = FILES / name
    assert_comes_back(source, tmp_path)
    assert ReferenceStore(tmp_path / "m.zarr").files() == {name: source.read_bytes()}


def test_tensors_have_the_names_of_their_keys(tmp_path: Path) -> None:
    for name in ("state.bin", "older.bin", "protocol5.bin", "older4.bin", "module.pt"):
        with noted(name), open_model(stored(FILES / name, tmp_path)) as model:
            assert sorted(model) == STATE
            assert model["0.weight"].shape == (30, 20)
            assert model["0.weight"].dtype == "bfloat16"
    with open_model(stored(FILES / "training.ckpt", tmp_path)) as model:
        assert {"model.0.weight", "losses.0", "losses.1.last"} <= set(model)
        assert {"optimizer.state.0.exp_avg", "optimizer.state.0.step"} <= set(model)
        assert model["losses.0"][...].tolist() == [0.5, 0.25]


def test_forms_have_the_same_tensors(tmp_path: Path) -> None:
    found = []
    for name in ("state.bin", "older.bin"):
        with open_model(stored(FILES / name, tmp_path)) as model:
            found.append({key: model[key][...].tobytes() for key in model})
    assert found[0] == found[1]


def test_shared_and_strange_tensors(tmp_path: Path) -> None:
    """A tied tensor has both names; one that is turned is not shown by its name."""
    store = stored(FILES / "tied.pth", tmp_path)
    with open_model(store) as model:
        assert {"part", "turned"}.isdisjoint(model)
        assert model["embed"][...].tobytes() == model["head"][...].tobytes()
        assert model["none"].shape == (0, 3)
        assert model["scalar"][...] == 3.5
        assert model["complex"].shape == (5, 2)
        assert model["small"].dtype == "float8_e4m3fn"
    rows = {row.split()[0]: row.split() for row in info_table(store)[1:]}
    assert rows["head"][3] == "shared"


def test_safetensors_files_of_them(tmp_path: Path) -> None:
    store, target = stored(FILES / "tied.pth", tmp_path), tmp_path / "m.safetensors"
    assert "--to safetensors" in refused("zarr2st", store, target)
    done("zarr2st", store, target, "--to", "safetensors")
    with open_model(store) as model, open_model(target) as file:
        assert set(model) == set(file)
        for name in model:
            assert model[name][...].tobytes() == file[name][...].tobytes()
    assert len(read_header(target).tensors) == len(open_model(store))
    done("st2zarr", target, tmp_path / "again.zarr")
    done("zarr2st", tmp_path / "again.zarr", tmp_path / "same.safetensors", "--to", "safetensors")
    assert (tmp_path / "same.safetensors").read_bytes() == target.read_bytes()
    with pytest.raises(ValueError, match="only 'safetensors'"):
        zarr_to_safetensors(store, tmp_path / "x", to="gguf")


def test_bases_runs_and_lossy_stores(tmp_path: Path) -> None:
    source = FILES / "tied.pth"
    base = stored(source, tmp_path).rename(tmp_path / "base.zarr")
    done("st2zarr", source, tmp_path / "d.zarr", "--base", base)
    done("zarr2st", tmp_path / "d.zarr", tmp_path / "d.pth")
    for step in (1, 2):
        done("st2zarr", "--append", "--step", step, source, tmp_path / "run.zarr")
    for step in (1, 2):
        done("zarr2st", f"{tmp_path / 'run.zarr'}@{step}", tmp_path / f"{step}.pth")
    for name in ("d", "1", "2"):
        assert (tmp_path / f"{name}.pth").read_bytes() == source.read_bytes()
    done("st2zarr", source, tmp_path / "half.zarr", "--lossy", "float16")
    done("zarr2st", tmp_path / "half.zarr", tmp_path / "half.pth")
    assert (tmp_path / "half.pth").stat().st_size == source.stat().st_size


def test_models_of_several_files(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    names = {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}
    for key, name in names.items():
        content = pickled({key: tensor("Float", "0", 12, 0, (3, 4), (4, 1))})
        write_zip(folder / name, content, {"0": MATRIX})
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    for source in (folder, index):
        with noted(str(source)):
            done("st2zarr", source, tmp_path / "m.zarr", "--overwrite")
            done("zarr2st", tmp_path / "m.zarr", tmp_path / "back", "--overwrite")
            back = {path.name: path.read_bytes() for path in (tmp_path / "back").iterdir()}
            assert back == {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / names["b"]).unlink()
    assert "No such file" in refused("st2zarr", folder, tmp_path / "n.zarr")


def test_targets_that_are_other_files(tmp_path: Path) -> None:
    store, target = stored(FILES / "state.bin", tmp_path), tmp_path / "x.bin"
    target.write_text("mine")
    assert "is not a PyTorch file" in refused("zarr2st", store, target, "--overwrite")
    shutil.copy(FILES / "slice.pt", target)
    done("zarr2st", store, target, "--overwrite")
    assert target.read_bytes() == (FILES / "state.bin").read_bytes()


def views(tmp_path: Path, values: dict[str, bytes], **options: Any) -> set[str]:
    """Return the names of the tensors of a file with one storage of 12 items."""
    path = write_zip(tmp_path / "x.pt", pickled(values), {"0": MATRIX}, **options)
    with open_model(stored(path, tmp_path)) as model:
        return set(model)


def test_views_of_one_storage(tmp_path: Path) -> None:
    """Larger tensors come before smaller ones that overlap them; both ends of a storage stay."""
    halves = {
        "a": tensor("Float", "0", 12, 0, (2, 3), (3, 1)),
        "b": tensor("Float", "0", 12, 6, (6,), (1,)),
    }
    assert views(tmp_path, halves) == {"a", "b"}
    overlapping = halves | {"c": tensor("Float", "0", 12, 0, (3, 3), (3, 1))}
    assert views(tmp_path, overlapping) == {"c"}
    turned = {"t": tensor("Float", "0", 12, 0, (4, 3), (1, 4))}
    assert views(tmp_path, turned) == set()
    names = {"a.b": halves["a"], "a": b"}" + plain("b") + halves["b"] + b"s"}
    assert views(tmp_path, names) == {"a.b", "a.b#2"}
    assert views(tmp_path, halves, byteorder="big") == set()
    assert views(tmp_path, halves, compression=zipfile.ZIP_DEFLATED) == set()


def test_a_storage_without_tensors_is_one(tmp_path: Path) -> None:
    data = np.arange(3000, dtype="<f4").tobytes()
    values = {"t": tensor("Float", "0", 3000, 0, (3, 1000), (1, 3))}
    path = write_zip(tmp_path / "x.pt", pickled(values), {"0": data})
    with open_model(stored(path, tmp_path)) as model:
        assert list(model) == ["storage 0"]
        assert model["storage 0"][...].tobytes() == data
    values = {"s": storage("Long", "0", 1500)}
    path = write_older(tmp_path / "y.pt", pickled(values), {"0": (1500, data)})
    with open_model(stored(path, tmp_path)) as model:
        assert model["storage 0"].dtype == "int64"


def damaged_zip(change: Callable[[bytearray], None]) -> bytes:
    content = bytearray((FILES / "state.bin").read_bytes())
    change(content)
    return bytes(content)


def entry_of_storage(content: bytearray) -> int:
    """Return where the directory's entry of the first storage begins."""
    return content.rfind(b"PK\x01\x02", 0, content.rfind(b"/data/0"))


def _cut(content: bytearray) -> None:
    del content[2000:]


def _far_storage(content: bytearray) -> None:
    at = entry_of_storage(content)
    content[at + 42 : at + 46] = (1 << 30).to_bytes(4, "little")


def _encrypt(content: bytearray) -> None:
    at = content.find(b"PK\x01\x02")
    content[at + 8] |= 1


DAMAGES = {
    "truncated ZIP file": _cut,
    "not where it should be": _far_storage,
    "encrypted": _encrypt,
}


@pytest.mark.parametrize("message", DAMAGES)
def test_damaged_zip_files(message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(damaged_zip(DAMAGES[message]))
    assert message in refused("st2zarr", path, tmp_path / "m.zarr")
    assert not (tmp_path / "m.zarr").exists()


def test_storages_that_overlap(tmp_path: Path) -> None:
    """Two entries of a directory may have one place."""
    data = np.arange(4000, dtype="<f4").tobytes()
    forms = {key: tensor("Float", key, 4000, 0, (4000,), (1,)) for key in ("0", "1")}
    turned = {"2": tensor("Float", "1", 4000, 0, (2, 2000), (1, 2))}
    for values in (forms, turned, {"n": plain(None)}):
        path = write_zip(tmp_path / "x.pt", pickled(values), {"0": data, "1": data})
        content = bytearray(path.read_bytes())
        first = entry_of_storage(content)
        second = content.rfind(b"PK\x01\x02", 0, content.rfind(b"/data/1"))
        content[second + 42 : second + 46] = content[first + 42 : first + 46]
        path.write_bytes(content)
        stored(path, tmp_path)


def test_damaged_older_files(tmp_path: Path) -> None:
    content, path = (FILES / "older.bin").read_bytes(), tmp_path / "x.bin"
    for n in (len(content) - 1, len(content) // 2, 40, 16):
        with noted(n):
            path.write_bytes(content[:n])
            line = refused("st2zarr", path, tmp_path / "m.zarr")
            assert "damaged pickle" in line or "truncated" in line


def test_a_checksum_of_zip_that_is_wrong_stays(tmp_path: Path) -> None:
    content = bytearray((FILES / "state.bin").read_bytes())
    content[entry_of_storage(content) + 16] ^= 1
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    stored(path, tmp_path)


def test_tensors_behind_their_storage(tmp_path: Path) -> None:
    for shape, strides in (((13,), (1,)), ((3, 5), (4, 1)), ((1 << 40, 1 << 40), (1, 1))):
        with noted(shape):
            content = pickled({"w": tensor("Float", "0", 12, 0, shape, strides)})
            path = write_zip(tmp_path / "x.pt", content, {"0": MATRIX})
            assert "'w' ends behind its storage" in refused("st2zarr", path, tmp_path / "m.zarr")


def outline(text: Any, others: bytes = b"") -> bytes:
    raw = json.dumps(text).encode()
    return len(raw).to_bytes(8, "little") + raw + others


def test_outlines_that_break_the_rules() -> None:
    form = {"dtype": "U8", "shape": [4], "offset": 2}
    parsed = parse_outline(outline({"tensors": {"a": form}}, b"0123"), "x", 8, "o")
    assert (parsed.prefix, parsed.gaps, parsed.file_size) == (b"01", ((6, b"23"),), 8)
    damages = {
        "truncated": outline({"tensors": {}})[:9],
        "are 3, not 4": outline({"tensors": {"a": form}}, b"012"),
        "are 5, not 4": outline({"tensors": {"a": form}}, b"01234"),
        "ends behind the file": outline({"tensors": {"a": {**form, "offset": 5}}}, b"0123"),
        "is not an offset": outline({"tensors": {"a": {**form, "offset": -1}}}, b"0123"),
        "is not a dtype": outline({"tensors": {"a": {**form, "dtype": "X"}}}, b"0123"),
        "is not a shape": outline({"tensors": {"a": {**form, "shape": [-1]}}}, b"0123"),
        "fill whole bytes": outline({"tensors": {"a": {**form, "dtype": "F4", "shape": [3]}}}),
        "overlap": outline({"tensors": {"a": form, "b": {**form, "offset": 3}}}, b"0123"),
        "which is no tensor": outline({"tensors": {}, "aliases": {"b": "a"}}, b"01234567"),
        "stands for another": outline({"tensors": {"a": form}, "aliases": {"a": "a"}}, b"0123"),
        "not an object": outline({"tensors": {}, "aliases": []}, b"01234567"),
        "'tensors'": outline({}, b"01234567"),
    }
    for message, raw in damages.items():
        with noted(message), pytest.raises(StoreError, match=message):
            parse_outline(raw, "x", 8, "o")


def test_outlines_of_nothing() -> None:
    def read(ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [bytes(stop - start) for start, stop in ranges]

    assert make_outline("x", 0, Layout.empty(), read).file_size == 0
    whole = make_outline("x", 4, Layout([Region("a", "F32", (), 0)], {}, [], []), read)
    assert (whole.prefix, whole.gaps) == (b"", ())


def test_verifying_other_files(tmp_path: Path) -> None:
    store = stored(FILES / "state.bin", tmp_path)
    assert verify_store(store, FILES / "state.bin").tensors == len(STATE)
    line = refused("bf16codecs", "verify", store, FILES / "older.bin")
    assert "its header differs" in line


def test_messages_name_the_kind(tmp_path: Path) -> None:
    assert "torch.save" in refused("bf16codecs", "info", FILES / "state.bin")
    plain_zip = tmp_path / "x.pt"
    with zipfile.ZipFile(plain_zip, "w") as archive:
        archive.writestr("a", "b")
    assert "not a file of torch.save: a ZIP file without" in refused(
        "st2zarr", plain_zip, tmp_path / "m.zarr"
    )


def dictionary(**values: object) -> bytes:
    return b"}(" + b"".join(plain(k) + plain(v) for k, v in values.items()) + b"u"


def v2(*rest: bytes) -> bytes:
    """Return a tensor of all 12 items, with more arguments."""
    start = [storage("Float", "0", 12), *map(plain, (0, (12,), (1,), False)), plain(None)]
    return call("torch._utils", "_rebuild_tensor_v2", *start, *rest)


def v3(dtype: str) -> bytes:
    start = [storage("Untyped", "0", 48), *map(plain, (0, (12,), (1,), False)), plain(None)]
    return call("torch._utils", "_rebuild_tensor_v3", *start, f"ctorch\n{dtype}\n".encode())


def test_numbers_that_the_file_does_not_have_are_not_shown(tmp_path: Path) -> None:
    """A conjugate or negative view has other numbers; of an unknown type, sizes are not known."""
    assert views(tmp_path, {"a": v2(dictionary(conj=False))}) == {"a"}
    for values in ({"a": v2(dictionary(conj=True))}, {"a": v2(dictionary(neg=True))}):
        assert views(tmp_path, values) == set()
    assert views(tmp_path, {"a": v3("float32")}) == {"a"}
    for dtype in ("bits16", "float99"):
        assert views(tmp_path, {"a": v3(dtype)}) == set()


def test_tensors_without_a_name_are_listed(tmp_path: Path) -> None:
    done("st2zarr", FILES / "tied.pth", tmp_path / "m.zarr")
    report = done("st2zarr", FILES / "tied.pth", tmp_path / "m.zarr", "--overwrite")
    assert "not shown by name: part, turned" in report
    report = done("zarr2st", tmp_path / "m.zarr", tmp_path / "m.safetensors", "--to", "safetensors")
    assert "not in the file: part, turned" in report
    report = done("st2zarr", FILES / "quantized.pt", tmp_path / "q.zarr")
    assert "not shown by name: " in report


def test_safetensors_files_have_tensors_alone(tmp_path: Path) -> None:
    data = np.arange(3000, dtype="<f4").tobytes()
    values = {"t": tensor("Float", "0", 3000, 0, (2, 3), (3, 1)), "text": plain("x" * 5000)}
    store = stored(write_zip(tmp_path / "x.pt", pickled(values), {"0": data}), tmp_path)
    with open_model(store) as model:
        assert set(model) == {"t", "storage 0[24:12000]", "bytes 0"}
    done("zarr2st", store, tmp_path / "m.safetensors", "--to", "safetensors")
    assert [t.name for t in read_header(tmp_path / "m.safetensors").tensors] == ["t"]


def test_storages_of_the_older_form_that_no_tensor_shows(tmp_path: Path) -> None:
    """Their sizes are known all the same, and those behind them are where they are."""
    parameter = call(
        "torch._utils",
        "_rebuild_parameter_with_state",
        tensor("Float", "0", 12, 0, (12,), (1,)),
        plain(True),
        plain(None),
        b"}" + plain("extra") + tensor("Double", "1", 6, 0, (6,), (1,)) + b"s",
    )
    deep = b"]" * 300 + tensor("Double", "1", 6, 0, (6,), (1,)) + b"a" * 300
    storages = {"1": (6, MATRIX), "2": (24, MATRIX)}
    for name, first, others in (("state", parameter, {"0": (12, MATRIX)}), ("deep", deep, {})):
        with noted(name):
            values = {"a": first, "b": tensor("Half", "2", 24, 0, (24,), (1,))}
            path = write_older(tmp_path / "x.pt", pickled(values), others | storages)
            with open_model(stored(path, tmp_path)) as model:
                assert model["b"][...].tobytes() == MATRIX


def test_keys_that_are_no_names(tmp_path: Path) -> None:
    surrogate = b"X\x04\x00\x00\x00\xed\xa0\x80x"
    keys = {surrogate: "\\ud800x", plain(10**50): "key0", plain((1, 2)): "key0", plain(7): "7"}
    for key, name in keys.items():
        with noted(name):
            content = b"\x80\x02}" + key + tensor("Float", "0", 12, 0, (12,), (1,)) + b"s."
            path = write_zip(tmp_path / "x.pt", content, {"0": MATRIX})
            with open_model(stored(path, tmp_path)) as model:
                assert list(model) == [name]


def test_many_names_of_one_tensor(tmp_path: Path) -> None:
    """Names are bounded, in number and in length."""
    one = tensor("Float", "0", 12, 0, (12,), (1,)) + b"q\x07"
    values = {"x" * 1_000_000: b"(" + one + b"h\x07" * 2000 + b"t"}
    path = write_zip(tmp_path / "x.pt", pickled(values), {"0": MATRIX})
    with open_model(stored(path, tmp_path)) as model:
        names = list(model)
    assert len(names) == 1002  # with bytes 0, the pickle
    assert max(map(len, names)) < 300


def test_folders_of_several_files(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("optimizer.pt", "training_args.bin"):
        shutil.copy(FILES / "slice.pt", folder / name)
    line = refused("st2zarr", folder, tmp_path / "m.zarr")
    assert "several files of PyTorch, optimizer.pt, training_args.bin: name one" in line
    shutil.copy(FILES / "state.bin", folder / "pytorch_model.bin")
    report = done("st2zarr", folder, tmp_path / "m.zarr")
    assert "not in the store: optimizer.pt, training_args.bin" in report


def test_targets_of_other_kinds(tmp_path: Path) -> None:
    store = stored(FILES / "state.bin", tmp_path)
    assert "of another kind, .gguf" in refused("zarr2st", store, tmp_path / "x.gguf")
    for name in ("odd.gguf", "odd.safetensors"):  # each may be called as it was
        shutil.copy(FILES / "state.bin", tmp_path / name)
        odd = stored(tmp_path / name, tmp_path)
        done("zarr2st", odd, tmp_path / f"again-{name}")
        assert f"such as x{Path(name).suffix}" in refused("zarr2st", odd, tmp_path / "x.npz")


def test_names_that_differ_by_case_or_are_folders(tmp_path: Path) -> None:
    """Paths depend on all names of tensors, also on further ones."""
    one = tensor("Float", "0", 12, 0, (12,), (1,))
    values = {"a": one + b"q\x07", **dict.fromkeys(("a.b", "A", "C.d"), b"h\x07")}
    path = write_zip(tmp_path / "x.pt", pickled(values), {"0": MATRIX})
    assert_comes_back(path, tmp_path)
    for target in CONVERTERS:
        with noted(target), open_model(tmp_path / target) as model:
            assert set(model) == set(values)


def test_parts_of_storages_and_shared_containers(tmp_path: Path) -> None:
    """The older form may name a part of a storage; a dictionary may be in several places."""
    whole = storage("Float", "0", 12)
    part = whole[: -len(b"tQ")] + plain(("v", 4, 4)) + b"tQ"
    moved = call("torch._utils", "_rebuild_tensor_v2", part, *map(plain, (0, (4,), (1,), False)))
    path = write_older(tmp_path / "x.pt", pickled({"x": moved}), {"0": (12, MATRIX)})
    with open_model(stored(path, tmp_path)) as model:
        assert list(model) == []
    inner = b"}" + plain("w") + tensor("Float", "0", 12, 0, (12,), (1,)) + b"sq\x07"
    assert views(tmp_path, {"a": inner, "b": b"h\x07"}) == {"a.w", "b.w"}
    itself = b"}q\x07" + plain("w") + tensor("Float", "0", 12, 0, (12,), (1,)) + b"s"
    itself += plain("again") + b"h\x07s"
    assert views(tmp_path, {"a": itself}) == {"a.w"}


def test_files_made_are_within_the_limit(tmp_path: Path) -> None:
    """Tied tensors have data of their own in a safetensors file."""
    data = np.zeros(1 << 18, "f4").tobytes()
    one = tensor("Float", "0", 1 << 18, 0, (1 << 18,), (1,)) + b"q\x07"
    values = {"w": one, **{f"w{i}": b"h\x07" for i in range(20)}}
    store = stored(write_zip(tmp_path / "x.pt", pickled(values), {"0": data}), tmp_path)
    target = tmp_path / "m.safetensors"
    with pytest.raises(LimitError):
        zarr_to_safetensors(store, target, to="safetensors", max_bytes=2 << 20)
    assert zarr_to_safetensors(store, target, to="safetensors").tensors == 21


def test_stores_that_do_not_say_the_kind(tmp_path: Path) -> None:
    store = stored(FILES / "state.bin", tmp_path)
    for kind in (None, "safetensors", 7):
        with noted(kind):
            edit_json(store, "zarr.json", lambda root, kind=kind: _set_kind(root, kind))
            done("zarr2st", store, tmp_path / "y.bin", "--overwrite")
            assert (tmp_path / "y.bin").read_bytes() == (FILES / "state.bin").read_bytes()


def _set_kind(root: Any, kind: Any) -> None:
    root["attributes"]["bf16codecs"]["files"][0]["kind"] = kind
