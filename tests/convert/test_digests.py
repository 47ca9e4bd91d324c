"""Digests of files: computed from any order of their parts, stored, compared."""

from __future__ import annotations

import hashlib
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

import bf16codecs
import tiers
from bf16codecs._files import digests as _digests
from bf16codecs.convert import (
    append_to_run,
    rebase_store,
    safetensors_to_hdf5,
    safetensors_to_run,
    safetensors_to_zarr,
    verify_store,
    zarr_to_safetensors,
)
from bf16codecs.errors import CorruptDataError
from edit_store import edit_attributes
from lazy_models import write_safetensors, write_shards

Digests = _digests.Digests
BOTH = _digests.kinds_of(True)


def digests_of(content: bytes) -> Digests:
    return Digests(blake3(content).hexdigest(), hashlib.sha256(content).hexdigest())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    arrays = {f"t{i}": rng.normal(0, 1, (40, 50)).astype("bfloat16") for i in range(5)}
    return write_safetensors(tmp_path / "m.safetensors", arrays)


def files_in_attributes(store: Path) -> Any:
    content = json.loads((store / "zarr.json").read_text())["attributes"]["bf16codecs"]
    return content["layout"], content["files"]


def test_parts_in_any_order() -> None:
    """Memory is released after it was hashed, and is reused from then on."""
    rng = tiers.rng("parts in any order")
    for _ in range(tiers.by_tier(8, 20)):
        content = rng.randbytes(300_000)
        start = rng.choice([0, 0, 8, 5000])
        cuts = sorted({start, len(content), *rng.choices(range(start, len(content)), k=60)})
        hashes = _digests.FileHash(BOTH, len(content), content[:start])

        def add(first: int, last: int, content: bytes, hashes: _digests.FileHash) -> None:
            part = np.frombuffer(content[first:last], np.uint8).copy()
            hashes.add(first, part, lambda: part.fill(0))

        parts = list(itertools.pairwise(cuts))
        for i in range(0, len(parts), 7):  # nearly in order, as they come in a conversion
            few = parts[i : i + 7]
            rng.shuffle(few)
            parts[i : i + 7] = few
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(add, *part, content, hashes) for part in parts]:
                done.result()
        assert hashes.digests() == digests_of(content), parts


@pytest.mark.parametrize("content", [b"", b"header alone", bytes(1 << 24)], ids=len)
def test_of_one_piece(content: bytes) -> None:
    assert Digests.of(content, BOTH) == digests_of(content)
    blake3_alone = _digests.kinds_of(False)
    assert Digests.of(content, blake3_alone) == Digests(digests_of(content).blake3)


def test_missing_bytes_are_noticed() -> None:
    hashes = _digests.FileHash(BOTH, 10, b"12345")
    hashes.add(6, b"7890")
    with pytest.raises(AssertionError, match="5 of 10 bytes"):
        hashes.digests()


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_of_many_shards(tmp_path: Path, threads: int) -> None:
    """Files are hashed side by side."""
    rng = np.random.default_rng(1)
    shards = [
        {f"{i}.{k}": rng.normal(0, 1, (60, 50)).astype("bfloat16") for k in range(i % 4 + 1)}
        for i in range(9)
    ]
    source = write_shards(tmp_path / "model", shards)
    store = tmp_path / "m.zarr"
    safetensors_to_zarr(source, store, threads=threads, chunk_size=1000, sha256=True)
    layout, files = files_in_attributes(store)
    assert layout == 2
    for file in files:
        found = Digests.from_entry(file)
        assert found == digests_of((source / file["name"]).read_bytes())
    verify_store(store, source, threads=threads)
    zarr_to_safetensors(store, tmp_path / "restored", threads=threads)
    for path in source.iterdir():
        assert (tmp_path / "restored" / path.name).read_bytes() == path.read_bytes()


def test_sha256_is_optional(model: Path, tmp_path: Path) -> None:
    expected = digests_of(model.read_bytes())
    store = tmp_path / "m.zarr"
    for sha256 in (False, True):
        safetensors_to_zarr(model, store, sha256=sha256, overwrite=True)
        _, (file,) = files_in_attributes(store)
        assert file["blake3"] == expected.blake3
        assert file.get("sha256") == (expected.sha256 if sha256 else None)


@pytest.mark.parametrize("kind", ["blake3", "sha256"])
def test_verifying_compares_both_and_restoring_the_first(
    model: Path, tmp_path: Path, kind: str
) -> None:
    store = tmp_path / "m.zarr"
    safetensors_to_zarr(model, store, sha256=True)
    edit_attributes(store, lambda a: a["files"][0].update({kind: "00"}))
    label = {"blake3": "BLAKE3", "sha256": "SHA-256"}[kind]
    with pytest.raises(CorruptDataError, match=f"m.safetensors has another {label} than"):
        verify_store(store)
    if kind == "blake3":
        with pytest.raises(CorruptDataError, match="another BLAKE3"):
            zarr_to_safetensors(store, tmp_path / "r.safetensors")
    else:
        zarr_to_safetensors(store, tmp_path / "r.safetensors")


def test_rewriting_keeps_known_digests(model: Path, tmp_path: Path) -> None:
    bases = tmp_path / "base.zarr", tmp_path / "other.zarr"
    for base in bases:
        safetensors_to_zarr(model, base)
    for sha256 in (False, True):
        store = tmp_path / f"{sha256}.zarr"
        safetensors_to_zarr(model, store, base=bases[0], sha256=sha256)
        before = files_in_attributes(store)
        rebase_store(store, bases[1])
        assert files_in_attributes(store) == before
        edit_attributes(store, lambda a: a["files"][0].update(blake3="00"))
        with pytest.raises(CorruptDataError, match="has another BLAKE3 than the original"):
            rebase_store(store)


def test_stores_of_layout_1_are_bases_of_new_ones_and_have_them(
    model: Path, tmp_path: Path
) -> None:
    """Where no digest is shared, sizes and headers are compared, and then the blocks."""
    old, new = tmp_path / "old.zarr", tmp_path / "new.zarr"
    safetensors_to_zarr(model, old, sha256=True)
    edit_attributes(old, lambda a: (a.update(layout=1), a["files"][0].pop("blake3")))
    assert files_in_attributes(old)[0] == 1
    safetensors_to_zarr(model, new, base=old)
    verify_store(new, model)
    whole = tmp_path / "whole.h5"
    safetensors_to_hdf5(model, whole)
    verify_store(new, model, base=whole)
    rebase_store(new, whole)
    rebase_store(old, whole)
    verify_store(old, model)
    _, (file,) = files_in_attributes(old)
    assert Digests.from_entry(file) == digests_of(model.read_bytes())


def test_of_the_steps_of_a_run(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "r.zarr"
    safetensors_to_run([model], run, steps=[1], sha256=True)
    append_to_run(model, run, 2)
    content = json.loads((run / "zarr.json").read_text())["attributes"]["bf16codecs"]
    first, second = (Digests.from_entry(step["files"][0]) for step in content["steps"])
    assert first == digests_of(model.read_bytes())
    assert second == Digests(first.blake3)
    verify_store(run)


def test_attributes_without_a_digest(model: Path, tmp_path: Path) -> None:
    store = tmp_path / "m.zarr"
    safetensors_to_zarr(model, store)
    for damage, message in (
        (lambda file: file.pop("blake3"), "a file has no digest"),
        (lambda file: file.update(blake3=3), "a digest is not a string"),
        (lambda file: file.update(sha256=["00"]), "a digest is not a string"),
    ):
        safetensors_to_zarr(model, store, overwrite=True)
        edit_attributes(store, lambda a, damage=damage: damage(a["files"][0]))
        with pytest.raises(bf16codecs.errors.StoreError, match=message):
            bf16codecs.open_model(store)
