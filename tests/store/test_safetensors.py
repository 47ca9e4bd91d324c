"""Invalid headers are refused in one line; all others are read as the reference reads them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from bf16codecs import open_model
from bf16codecs.safetensors import (
    DTYPE_BITS,
    MAX_HEADER_BYTES,
    SafetensorsError,
    make_header,
    open_source,
    parse_header,
    read_header,
)
from looping import noted
from models import TRICKY_NAMES, entry, every_dtype, file_bytes, write_model


def a(**changes: Any) -> dict[str, Any]:
    """Return a header of one tensor of two bytes, with changes to its entry."""
    return {"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2], **changes}}


RIGHT = json.dumps(a()).encode()
DEEP = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

REFUSED = {
    "empty header": (b"", b""),
    "list": (b"[]", b""),
    "number": (b"3", b""),
    "not UTF-8": (b'{"\xff": 1}', b""),
    "byte order mark": (b"\xef\xbb\xbf" + RIGHT, b"ab"),
    "cut JSON": (RIGHT[:-1], b"ab"),
    "NUL padding": (RIGHT + b"\0\0", b"ab"),
    "nested too deep": (DEEP, b""),
    "huge number": (b'{"a":{"dtype":"U8","shape":[' + b"9" * 5000 + b"]}}", b""),
    "NaN": (RIGHT[:-1] + b',"x":NaN}', b"ab"),
    "duplicate tensor": (RIGHT[:-1] + b"," + RIGHT[1:], b"ab"),
    "duplicate key": (RIGHT.replace(b'"shape"', b'"dtype":"U8","shape"'), b"ab"),
    "duplicate metadata": (b'{"__metadata__":{"k":"1","k":"2"}}', b""),
    "metadata of numbers": ({"__metadata__": {"k": 1}}, b""),
    "metadata list": ({"__metadata__": []}, b""),
    "entry not an object": ({"a": 3}, b""),
    "no dtype": ({"a": {"shape": [2], "data_offsets": [0, 2]}}, b"ab"),
    "no shape": ({"a": {"dtype": "U8", "data_offsets": [0, 2]}}, b"ab"),
    "no offsets": ({"a": {"dtype": "U8", "shape": [2]}}, b"ab"),
    "unknown dtype": (a(dtype="U7"), b"ab"),
    "lower-case dtype": (a(dtype="u8"), b"ab"),
    "dtype not a string": (a(dtype=["U8"]), b"ab"),
    "float in shape": (a(shape=[2.0]), b"ab"),
    "negative in shape": (a(shape=[-2]), b"ab"),
    "true in shape": (a(shape=[True, 2]), b"ab"),
    "string in shape": (a(shape=["2"]), b"ab"),
    "shape is a number": (a(shape=2), b"ab"),
    "size beyond 64 bits": (a(shape=[0, 2**64]), b""),
    "product overflows": (a(shape=[2**32, 2**32, 0], data_offsets=[0, 0]), b""),
    "bits overflow": (a(dtype="F64", shape=[2**61], data_offsets=[0, 0]), b""),
    "size wraps to zero": (a(shape=[2**63, 2], data_offsets=[0, 0]), b""),
    "one offset": (a(data_offsets=[0]), b"ab"),
    "three offsets": (a(data_offsets=[0, 2, 2]), b"ab"),
    "offsets reversed": (a(data_offsets=[2, 0]), b"ab"),
    "negative offset": (a(data_offsets=[-2, 0]), b"ab"),
    "offset beyond 64 bits": (a(data_offsets=[2**64, 2**64 + 2]), b"ab"),
    "size contradicts shape": (a(shape=[3]), b"ab"),
    "beyond the end": (a(), b"a"),
    "far beyond the end": (a(shape=[2**40], data_offsets=[0, 2**40]), b"ab"),
    "trailing data": (a(), b"abc"),
    "hole at the start": (a(data_offsets=[1, 3]), b"abc"),
    "hole": ({"a": entry("U8", [2]), "b": entry("U8", [2], 3)}, b"abcde"),
    "overlap": ({"a": entry("U8", [2]), "b": entry("U8", [2], 1)}, b"abc"),
    "same bytes twice": ({"a": entry("U8", [2]), "b": entry("U8", [2])}, b"ab"),
    "empty tensor inside another": ({"a": entry("U8", [2]), "b": entry("U8", [0], 1)}, b"ab"),
    "packed dtype ends in a byte": ({"a": {**entry("F4", [3]), "data_offsets": [0, 2]}}, b"ab"),
    "surrogate in a name": (RIGHT.replace(b'"a"', b'"\\ud800"'), b"ab"),
    "surrogate in metadata": (b'{"__metadata__":{"k":"\\uDFFF"}}', b""),
    "surrogate that nobody reads": (RIGHT.replace(b"}}", b',"x":["\\ud800"]}}'), b"ab"),
    "negative zero": (RIGHT.replace(b"[0, 2]", b"[-0, 2]"), b"ab"),
    "number out of range": (RIGHT.replace(b"}}", b',"x":1e999}}'), b"ab"),
    "long number out of range": (RIGHT.replace(b"}}", b',"x":-' + b"9" * 400 + b"}}"), b"ab"),
}

#: Headers that the reference implementation accepts and this one refuses on purpose.
STRICTER = {"duplicate tensor", "duplicate metadata"}


def test_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for name, (header, data) in REFUSED.items():
        path.write_bytes(file_bytes(header, data))
        with noted(name):
            with pytest.raises(SafetensorsError) as caught:
                read_header(path)
            assert str(caught.value).startswith(str(path))
            assert "\n" not in str(caught.value)
            if name not in STRICTER:
                with pytest.raises(safetensors.SafetensorError):
                    safetensors.deserialize(path.read_bytes())


ACCEPTED = {
    "plain": (RIGHT, b"ab"),
    "no tensors": (b"{}", b""),
    "leading space": (b" \n\t\r" + RIGHT, b"ab"),
    "trailing space": (RIGHT + b" \n\t\r", b"ab"),
    "null metadata": ({**a(), "__metadata__": None}, b"ab"),
    "unknown key": (a(more=[1, -1.5e300, 2**70]), b"ab"),
    "negative zero that nobody reads": (RIGHT.replace(b"}}", b',"x":-0}}'), b"ab"),
    "escaped pair of surrogates": (RIGHT.replace(b'"a"', b'"\\ud83d\\ude00"'), b"ab"),
    "offsets out of order": ({"b": entry("U8", [1], 2), "a": entry("U8", [2])}, b"abc"),
    "empties share offsets": (
        {
            "c": entry("F32", [0], 2),
            "a": entry("U8", [2]),
            "b": entry("U8", [0]),
            "d": entry("U8", [0, 2**63], 2),
        },
        b"ab",
    ),
}


def test_accepted_as_the_reference_does(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for name, (content, data) in ACCEPTED.items():
        path.write_bytes(file_bytes(content, data))
        with noted(name):
            header = read_header(path)
            theirs = dict(safetensors.deserialize(path.read_bytes()))
            data = path.read_bytes()[header.data_start :]
            assert {t.name for t in header.tensors} == set(theirs)
            for t in header.tensors:
                assert list(t.shape) == theirs[t.name]["shape"]
                assert t.dtype == theirs[t.name]["dtype"]
                assert data[t.start : t.stop] == theirs[t.name]["data"]
            assert header.file_size == path.stat().st_size


def test_every_dtype(tmp_path: Path) -> None:
    header = read_header(every_dtype(tmp_path / "m.safetensors"))
    assert {t.dtype for t in header.tensors} == set(DTYPE_BITS)
    assert header.metadata == {"format": "pt"}
    assert len(safetensors.deserialize((tmp_path / "m.safetensors").read_bytes())) == len(
        header.tensors
    )


def test_truncated_at_every_byte(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "whole", [("a", "BF16", (3, 2)), ("b", "F32", (2,))])
    content = whole.read_bytes()
    path = tmp_path / "cut.safetensors"
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(SafetensorsError, match="truncated"):
            read_header(path)


def test_oversized_header_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with open(path, "wb") as file:
        file.write((MAX_HEADER_BYTES + 1).to_bytes(8, "little"))
        file.truncate(MAX_HEADER_BYTES + 100)
    with pytest.raises(SafetensorsError, match="limit is 100000000"):
        read_header(path)


def test_not_regular_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_source(tmp_path / "missing.safetensors")
    with pytest.raises(SafetensorsError, match="not a regular file"):
        read_header(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(SafetensorsError, match="not a regular file"):
            open_source(tmp_path / "pipe")


def refusal(raw: bytes, data_size: int) -> str:
    """Return the message that refuses a header, or an empty string if it is accepted."""
    try:
        parse_header(raw, data_size, "x")
    except SafetensorsError as e:
        return str(e)
    return ""


@given(st.binary(max_size=200), st.integers(0, 20))
def test_arbitrary_headers_raise_nothing_else(raw: bytes, size: int) -> None:
    assert "\n" not in refusal(raw, size)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["U8", "F4", "BF16"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["dtype", "shape", "data_offsets", "__metadata__", "a"]), inner
        )
    ),
)


@given(st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), json_values), st.integers(0, 9))
def test_arbitrary_json_raises_nothing_else(header: dict[str, Any], size: int) -> None:
    assert "\n" not in refusal(json.dumps(header).encode(), size)


@given(
    st.lists(
        st.tuples(
            st.text(max_size=9) | st.sampled_from(TRICKY_NAMES),
            st.sampled_from(["U8", "BF16", "F4", "F64"]),
            st.lists(st.integers(0, 4).map(lambda n: 2 * n), max_size=3),
        ),
        unique_by=lambda t: t[0],
    )
)
def test_valid_headers_are_accepted(tensors: list[tuple[str, str, list[int]]]) -> None:
    header: dict[str, Any] = {}
    end = 0
    for name, dtype, shape in tensors:
        if dtype == "F4" and not shape:
            shape = [2]
        if name != "__metadata__":
            header[name] = entry(dtype, shape, end)
            end = header[name]["data_offsets"][1]
    parsed = parse_header(json.dumps(header).encode(), end, "x")
    assert {t.name for t in parsed.tensors} == set(header)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    write_model(folder / "m-1.safetensors", [("a", "BF16", (4, 4)), ("b", "F32", (3,))], 1)
    write_model(folder / "m-2.safetensors", [("c", "BF16", (2, 2))], 2)
    return folder


def write_index(folder: Path, weight_map: Any) -> Path:
    path = folder / "m.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


def test_folder_of_shards(shards: Path) -> None:
    (shards / "config.json").write_text("{}")
    (shards / ".hidden.safetensors").write_bytes(b"")
    source = open_source(shards)
    assert [f.name for f in source.files] == ["m-1.safetensors", "m-2.safetensors"]
    assert source.index is None
    sizes = [path.stat().st_size for path in sorted(shards.glob("m-*"))]
    assert [file.header.file_size for file in source.files] == sizes


def test_index_is_found_and_kept(shards: Path) -> None:
    one, two = "m-1.safetensors", "m-2.safetensors"
    path = write_index(shards, {"a": one, "b": one, "c": two})
    for name in (shards, path):
        source = open_source(name)
        assert source.index == path
        assert source.index_raw == path.read_bytes()
        assert [f.name for f in source.files] == [one, two]


INCONSISTENT: list[tuple[Any, str]] = [
    (None, "no weight_map"),
    ([], "no weight_map"),
    ({"a": "../m-1.safetensors"}, "not a plain file name"),
    ({"a": "/m-1.safetensors"}, "not a plain file name"),
    ({"a": "c:m-1.safetensors"}, "not a plain file name"),
    ({"a": "x\\m-1.safetensors"}, "not a plain file name"),
    ({"a": ".."}, "not a plain file name"),
    ({"a": ""}, "not a plain file name"),
    ({"a": "x" * 100_000}, "is in 'xxx.*, not a plain file name"),
    ({"a": 1}, "not a plain file name"),
    ({"c": "m-1.safetensors"}, "'c' is not in m-1"),
    ({"a": "m-1.safetensors"}, "m-2.safetensors is not in"),
]


def test_inconsistent_index(shards: Path) -> None:
    for weight_map, message in INCONSISTENT:
        write_index(shards, weight_map)
        with noted(weight_map), pytest.raises(SafetensorsError, match=message):
            open_source(shards)


INDEX_NAMES = [
    "model.safetensors.index.json",
    "model.safetensors.index.fp16.json",
    "model.fp16.safetensors.index.json",
    "diffusion_pytorch_model.safetensors.index.non_ema.json",
    "adapter_model.safetensors.index.json",
]


def test_indexes_of_any_name(shards: Path) -> None:
    path = write_index(shards, {"a": "m-1.safetensors", "b": "m-1.safetensors"})
    path.write_text(path.read_text().replace("}}", ', "c": "m-2.safetensors"}}'))
    for name in INDEX_NAMES:
        path = path.rename(shards / name)
        for opened in (shards, path):
            with noted(opened):
                assert open_source(opened).index == path
                with open_model(opened) as model:
                    assert len(model) == 3
    for name in ("model.bin.index.json", "model.safetensors.index.json.old", "index.json"):
        path = path.rename(shards / name)
        source = open_source(shards)
        assert (source.index, source.left_out) == (None, (name,))


def test_indexes_that_were_left_behind(shards: Path) -> None:
    """None of their files exists, so that they do not concern the existing ones."""
    old = shards / "m.safetensors.index.fp16.json"
    old.write_text(json.dumps({"weight_map": {"a": "m.fp16-1.safetensors"}}))
    source = open_source(shards)
    assert (source.index, source.left_out) == (None, (old.name,))
    path = write_index(shards, {t: f"m-{n}.safetensors" for t, n in zip("abc", "112", strict=True)})
    source = open_source(shards)
    assert (source.index, source.left_out) == (path, (old.name,))
    old.write_text(path.read_text())
    with pytest.raises(SafetensorsError, match=f"more than one index, {old.name}, {path.name}: na"):
        open_source(shards)
    old.write_text("{")
    with pytest.raises(SafetensorsError, match=f"more than one index, {old.name}"):
        open_source(shards)


def test_other_files_in_a_folder(shards: Path) -> None:
    (shards / "config.json").write_text("{}")
    (shards / "unet").mkdir()
    (shards / ".git").mkdir()
    (shards / "gone.txt").symlink_to("nothing")
    (shards / "z.safetensors.index.json").write_text(json.dumps({"weight_map": {}}))
    others = ("z.safetensors.index.json", "config.json", "gone.txt", "unet/")
    assert open_source(shards).left_out == others
    assert open_source(shards / "m-1.safetensors").left_out == ()


def test_index_names_a_missing_file(shards: Path) -> None:
    path = write_index(shards, {"a": "m-3.safetensors"})
    with pytest.raises(FileNotFoundError, match=r"m-3\.safetensors"):
        open_source(path)


#: Names of shards, and of the first one that these show to be missing.
NUMBERED = [
    (["m-00001-of-00003", "m-00003-of-00003"], "m-00002-of-00003"),
    (["m-00001-of-00002"], "m-00002-of-00002"),
    (["m-0-of-2"], "m-1-of-2"),
    (["a-1-of-1", "m-1-of-999999999"], "m-2-of-999999999"),
    (["m-00001-of-00002", "m-00002-of-00002"], None),
    (["m-0-of-2", "m-1-of-2", "of-3"], None),
    (["m-00001-of-00002.fp16"], "m-00002-of-00002.fp16"),
    (["m-00001-of-00001", "m-00001-of-00002.fp16"], "m-00002-of-00002.fp16"),
    (["m-00001-of-00002.fp16", "m-00002-of-00002.fp16"], None),
]


def test_shards_that_the_names_of_others_imply(tmp_path: Path) -> None:
    """A download that was cut short: without an index, nothing else tells."""
    for number, (names, missing) in enumerate(NUMBERED):
        folder = tmp_path / str(number)
        folder.mkdir()
        for i, name in enumerate(names):
            write_model(folder / f"{name}.safetensors", [(f"t{i}", "BF16", (2, 2))])
        if missing is None:
            assert len(open_source(folder).files) == len(names)
            continue
        for opened in (open_source, open_model):
            with pytest.raises(SafetensorsError, match=rf"{missing}\.safetensors is missing"):
                opened(folder)
        assert open_source(folder / f"{names[0]}.safetensors").files


def test_index_that_is_no_json(shards: Path) -> None:
    path = write_index(shards, {})
    path.write_bytes(b"{")
    with pytest.raises(SafetensorsError, match="not valid JSON"):
        open_source(path)


def test_folders_that_are_ambiguous_or_empty(shards: Path, tmp_path: Path) -> None:
    write_model(shards / "m-3.safetensors", [("c", "BF16", (2, 2))])
    with pytest.raises(SafetensorsError, match=r"is in m-2\.safetensors, and also in m-3"):
        open_source(shards)
    (shards / "x.safetensors.index.json").write_text("{}")
    (shards / "y.safetensors.index.json").write_text("{}")
    with pytest.raises(SafetensorsError, match="more than one"):
        open_source(shards)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SafetensorsError, match=r"no model in this folder"):
        open_source(tmp_path / "empty")


def test_the_tensor_that_has_a_byte() -> None:
    """An empty tensor has none, though it begins where the next one does."""
    forms = {"a": ("F32", (2,)), "b": ("BF16", (0,)), "c": ("BF16", (3,))}
    header = make_header(forms, {}, "file")
    starts = [header.find(header.data_start + offset) for offset in (0, 7, 8, 13)]
    assert starts == [(0, 0), (0, 7), (2, 0), (2, 5)]
