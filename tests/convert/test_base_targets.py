"""Targets beside or in their bases, and bases that change during a conversion."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from based_models import FEW_KINDS, KINDS, assert_holds, convert, write_nearby
from bf16codecs.convert import (
    append_to_run,
    packing,
    safetensors_to_run,
    safetensors_to_zarr,
    zarr_to_safetensors,
)
from bf16codecs.errors import BaseMismatchError, CorruptDataError
from bf16codecs.store import StoreError
from folders import files_in, names_in
from models import write_model

kinds = pytest.mark.parametrize("kind", KINDS)
few_kinds = pytest.mark.parametrize("kind", FEW_KINDS)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "sources").mkdir()
    tensors = [("a", "BF16", (64, 40)), ("b", "F32", (30, 7))]
    return write_model(tmp_path / "sources" / "m.safetensors", tensors)


@pytest.fixture
def fine(source: Path) -> Path:
    return write_nearby(source, source.with_name("fine.safetensors"))


@kinds
def test_a_target_that_is_the_base(
    kind: str, source: Path, fine: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = convert(kind, source, folder / "m")
    before = files_in(folder)
    monkeypatch.chdir(folder)
    (folder.parent / "link").symlink_to(folder)
    for target in (folder / "m", Path("m"), folder.parent / "link" / "m"):
        for below in (base, base.name, base.as_uri()):
            with pytest.raises(ValueError, match=f"would replace the base, .*{base.name}"):
                convert(kind, fine, target, base=below, overwrite=True)
    assert files_in(folder) == before


@few_kinds
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_target_in_a_store(kind: str, source: Path, folder: Path, zarr_format: int) -> None:
    """No target goes into a store: verifying or replacing the store relies on its content."""
    store = folder / "m.zarr"
    safetensors_to_zarr(source, store, zarr_format=zarr_format)
    safetensors_to_run([source], folder / "run.zarr", steps=[1], zarr_format=zarr_format)
    (folder / "link").symlink_to(store / "a")
    before = files_in(folder)
    for target in (
        store / "in",
        store / "a" / "in",
        folder / "link" / "in",
        folder / "run.zarr/in",
    ):
        for base in (None, store):
            with pytest.raises(ValueError, match=r"would lie in the store .*\.zarr"):
                convert(kind, source, target, base=base)
    with pytest.raises(ValueError, match="would lie in the store"):
        convert(kind, source, store / "a", overwrite=True)
    with pytest.raises(ValueError, match="would lie in the store"):
        safetensors_to_run([source], store / "sub.zarr", steps=[1])
    with pytest.raises(ValueError, match="would lie in the store"):
        append_to_run(source, folder / "run.zarr" / "sub.zarr", 1)
    with pytest.raises(ValueError, match="would lie in the store"):
        zarr_to_safetensors(store, folder / "run.zarr" / "back")
    assert files_in(folder) == before
    convert(kind, source, source.parent / "beside checkpoints")


@kinds
def test_a_target_that_the_base_needs(kind: str, source: Path, fine: Path, folder: Path) -> None:
    first = convert(kind, source, folder / "first")
    second = convert(kind, fine, folder / "second", base=first)
    third = convert(kind, source, folder / "third", base=second)
    before = files_in(folder)
    for target in ("first", "second"):
        with pytest.raises(
            ValueError, match=rf"would replace the base that .*/third.* needs, .*/{target}"
        ):
            convert(kind, fine, folder / target, base=third, overwrite=True)
    assert files_in(folder) == before
    convert(kind, fine, folder / "third", base=second, overwrite=True)
    assert_holds(third, fine)


def test_a_store_that_holds_the_base(source: Path, fine: Path, folder: Path) -> None:
    """The base lies in the store's folder."""
    store = convert("zarr3", fine, folder / "m")
    base = convert("hdf5", source, folder / "base")
    base = base.rename(store / base.name)
    with pytest.raises(ValueError, match=f"would replace the base, {base}"):
        convert("zarr3", fine, folder / "m", base=base, overwrite=True)
    with pytest.raises(ValueError, match="would replace the base"):
        safetensors_to_zarr(fine, source, base=source, overwrite=True)


@few_kinds
def test_a_model_may_be_its_own_base(kind: str, source: Path, folder: Path) -> None:
    """That has no use, and does no harm."""
    store = convert(kind, source, folder / "m", base=source)
    assert_holds(store, source)


def test_existing_targets_are_reported_before_the_base_is_read(
    source: Path, fine: Path, folder: Path
) -> None:
    """Reading the base takes long: a digest of all safetensors files."""
    convert("zarr3", source, folder / "m")
    with pytest.raises(FileExistsError):
        convert("zarr3", fine, folder / "m", base=folder / "missing")
    assert names_in(folder) == {"m.zarr"}


def change_after(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[], object]) -> None:
    """Call a function once part of the conversion is done."""
    function = getattr(packing, name)

    def changed(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        change()
        return result

    monkeypatch.setattr(packing, name, changed)


@few_kinds
def test_files_that_change_while_they_are_the_base(
    kind: str, source: Path, fine: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After their digest was taken: the store would name other files than it needs."""
    for seed, moment in enumerate(("plan_model", "write_bytes"), 5):
        with monkeypatch.context() as patch:
            change_after(patch, moment, partial(write_nearby, source, source, seed=seed))
            with pytest.raises(BaseMismatchError, match=r"m\.safetensors: changed while it was"):
                convert(kind, fine, folder / "m", base=source)
        assert names_in(folder) == set(), moment


@pytest.mark.parametrize("kind", ["zarr3", "hdf5"])
def test_a_base_that_is_replaced_meanwhile(
    kind: str, source: Path, fine: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The opened base is read to the end where its files still exist."""
    base = convert(kind, source, folder / "base")
    other = write_nearby(source, source.with_name("other.safetensors"), seed=5)

    def replace_base() -> None:
        monkeypatch.undo()
        convert(kind, other, folder / "base", overwrite=True)

    change_after(monkeypatch, "plan_model", replace_base)
    if kind == "zarr3":
        with pytest.raises(StoreError, match=r"base\.zarr: .* was replaced or removed"):
            convert(kind, fine, folder / "m", base=base)
        assert names_in(folder) == {base.name}
        return
    store = convert(kind, fine, folder / "m", base=base)
    with pytest.raises(BaseMismatchError, match=r"base\.h5 is not its base"):
        assert_holds(store, fine)
    assert_holds(store, fine, base=source)


@few_kinds
def test_a_base_that_turns_out_to_be_damaged(
    kind: str, source: Path, fine: Path, folder: Path
) -> None:
    base = convert("zarr3", source, folder / "base", codec="huffman")
    chunk = base / "a" / "c.0.0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    before = files_in(folder)
    with pytest.raises((CorruptDataError, StoreError, ValueError), match="tensor 'a', chunk a/c"):
        convert(kind, fine, folder / "m", base=base)
    chunk.unlink()
    with pytest.raises(StoreError, match=r"tensor 'a', chunk a/c\.0\.0: it is missing"):
        convert(kind, fine, folder / "m", base=base)
    assert files_in(folder).keys() | {"base.zarr/a/c.0.0"} == before.keys()
