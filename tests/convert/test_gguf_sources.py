"""GGUF files become stores and come back byte for byte; those that claim too much are refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from bf16codecs import open_model
from bf16codecs.convert import safetensors_to_zarr
from invoked import done, refused
from looping import noted
from reference_store import ReferenceStore
from round_trips import assert_comes_back, stored

FILES = Path(__file__).parent / "goldens" / "gguf_files"
F32, Q4_0, UNKNOWN = 0, 2, 99
STRING, ARRAY, UINT32 = 8, 9, 4


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def info(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def file_of(
    infos: list[bytes],
    data: bytes,
    entries: tuple[bytes, ...] = (),
    version: int = 3,
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> bytes:
    """Return a file; `counts` are those it claims."""
    given = counts or (len(infos), len(entries))
    start = b"GGUF" + struct.pack("<IQQ", version, *given) + b"".join((*entries, *infos))
    return start + bytes(-len(start) % alignment) + data


def names_of(content: bytes, tmp_path: Path) -> list[str]:
    """Return the tensors of the store of a file, which is known to restore it."""
    source = tmp_path / "x.gguf"
    source.write_bytes(content)
    with open_model(stored(source, tmp_path)) as model:
        return list(model)


@pytest.mark.parametrize("name", ["little.gguf", "big.gguf"])
def test_files_of_the_package_come_back(name: str, tmp_path: Path) -> None:
    source = FILES / name
    assert_comes_back(source, tmp_path)
    assert ReferenceStore(tmp_path / "m.zarr").files() == {name: source.read_bytes()}


def test_numbers_are_arrays_and_blocks_are_bytes(tmp_path: Path) -> None:
    store = tmp_path / "m.zarr"
    done("st2zarr", FILES / "little.gguf", store)
    with open_model(store) as model:
        assert model["blk.0.F32.weight"].shape == (6, 256)
        assert model["blk.0.BF16.weight"].dtype == "bfloat16"
        assert model["blk.0.Q4_0.weight"].shape == (6, 8 * 18)
        assert model["blk.0.Q4_0.weight"].dtype == "uint8"
        assert model["ids"][...].tolist() == list(range(7))
    assert "--to safetensors" in refused("zarr2st", store, tmp_path / "m.safetensors")
    done("zarr2st", store, tmp_path / "m.safetensors", "--to", "safetensors")


def test_earlier_versions(tmp_path: Path) -> None:
    data = bytes(range(48))
    assert names_of(file_of([info("a", (4, 3), F32, 0)], data, version=2), tmp_path) == ["a"]
    # Lengths and counts of version 1 have 32 bits.
    start = b"GGUF" + struct.pack("<III", 1, 1, 1)
    start += struct.pack("<I", 3) + b"key" + struct.pack("<II", UINT32, 7)
    start += struct.pack("<I1sIIIIQ", 1, b"a", 2, 4, 3, F32, 0)
    assert names_of(start + bytes(-len(start) % 32) + data, tmp_path) == ["a"]
    later = file_of([], b"", version=4)
    (tmp_path / "x.gguf").write_bytes(later)
    assert "version 4" in refused("st2zarr", tmp_path / "x.gguf", tmp_path / "n.zarr")


def test_strange_files_come_back(tmp_path: Path) -> None:
    data = bytes(range(96))
    aligned = entry("general.alignment", UINT32, struct.pack("<I", 8))
    cases: dict[str, tuple[bytes, list[str]]] = {
        "nothing": (file_of([], b""), []),
        "twice": (file_of([info("a", (4,), F32, 0), info("a", (4,), F32, 32)], data), ["a", "a#2"]),
        "overlapping": (
            file_of([info("a", (8,), F32, 0), info("b", (8,), F32, 16)], data),
            ["a"],
        ),
        "unknown": (file_of([info("a", (8,), UNKNOWN, 0)], data), []),
        "not whole": (file_of([info("a", (33,), Q4_0, 0)], data), []),
        "no dimensions": (file_of([info("a", (), F32, 0)], data), ["a"]),
        "empty": (file_of([info("a", (0, 4), F32, 0)], data), ["a"]),
        "aligned": (file_of([info("a", (4,), F32, 8)], data, (aligned,), alignment=8), ["a"]),
        "lists of lists": (
            file_of(
                [info("a", (4,), F32, 0)],
                data,
                (
                    entry(
                        "x",
                        ARRAY,
                        struct.pack("<IQIQ", ARRAY, 1, STRING, 2) + text("y") + text("z"),
                    ),
                ),
            ),
            ["a"],
        ),
    }
    for name, (content, expected) in cases.items():
        with noted(name):
            assert names_of(content, tmp_path) == expected
    for name, hidden in (("overlapping", ("b",)), ("unknown", ("a",)), ("aligned", ())):
        with noted(name):
            (tmp_path / "x.gguf").write_bytes(cases[name][0])
            assert (
                safetensors_to_zarr(tmp_path / "x.gguf", tmp_path / f"{name}.zarr").hidden == hidden
            )


def test_files_that_claim_too_much(tmp_path: Path) -> None:
    data = bytes(96)
    zero = entry("general.alignment", UINT32, struct.pack("<I", 0))
    odd = entry("general.alignment", UINT32, struct.pack("<I", 24))
    huge = struct.pack("<Q", 1 << 60)
    cases: dict[str, tuple[bytes, str]] = {
        "tensors": (file_of([], b"", counts=(1 << 60, 0)), "truncated in its metadata"),
        "entries": (file_of([], b"", counts=(0, 1 << 60)), "truncated in its metadata"),
        "a string": (file_of([], b"", (entry("x", STRING, huge),)), "the limit is"),
        "a list": (
            file_of([], b"", (entry("x", ARRAY, struct.pack("<I", UINT32) + huge),)),
            "the limit is",
        ),
        "lists in lists": (
            file_of([], b"", (entry("x", ARRAY, struct.pack("<IQ", ARRAY, 1) * 100),)),
            "unknown type 9",
        ),
        "a type": (file_of([], b"", (entry("x", 77, b""),)), "unknown type 77"),
        "alignment 0": (file_of([], data, (zero,)), "alignment of 0"),
        "alignment 24": (file_of([], data, (odd,)), "alignment of 24"),
        "a shape": (file_of([info("a", (1 << 40, 1 << 40), F32, 0)], data), "larger than any"),
        "dimensions": (file_of([info("a", (1,) * 40, F32, 0)], data), "40 dimensions"),
        "an offset": (file_of([info("a", (4,), F32, 1 << 60)], data), "truncated"),
        "an end": (file_of([info("a", (64,), F32, 0)], data), "truncated"),
        "four bytes": (b"GGUF", "truncated in its metadata"),
    }
    for name, (content, message) in cases.items():
        with noted(name):
            (tmp_path / "x.gguf").write_bytes(content)
            assert message in refused("st2zarr", tmp_path / "x.gguf", tmp_path / "m.zarr")
            assert not (tmp_path / "m.zarr").exists()


def test_every_cut_is_refused_or_comes_back(tmp_path: Path) -> None:
    content: Any = (FILES / "little.gguf").read_bytes()
    for n in range(4, 1000, 37):
        with noted(n):
            (tmp_path / "x.gguf").write_bytes(content[:n])
            refused("st2zarr", tmp_path / "x.gguf", tmp_path / "m.zarr")


def test_folders(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    content = (FILES / "little.gguf").read_bytes()
    for n in (1, 2):
        if n == 2:
            done("st2zarr", folder, tmp_path / "m.zarr")
        (folder / f"m-0000{n}-of-00002.gguf").write_bytes(content)
    line = refused("st2zarr", folder, tmp_path / "n.zarr")
    assert "each becomes a store" in line


def test_big_endian_numbers_are_not_shown(tmp_path: Path) -> None:
    report = done("st2zarr", FILES / "big.gguf", tmp_path / "m.zarr")
    assert "not shown by name: " in report
    with open_model(tmp_path / "m.zarr") as model:
        assert list(model) == ["bytes 0"]
