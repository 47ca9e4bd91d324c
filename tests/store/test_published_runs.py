"""Published runs: a golden one, a second reader, and damage to everything that is stored."""

from __future__ import annotations

import functools
import json
import operator
import random
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bf16codecs
from bf16codecs.convert import run_to_safetensors, verify_store, zarr_to_safetensors
from bf16codecs.errors import BF16CodecsError, CorruptDataError, StoreError, UnsupportedVersionError
from folders import files_in
from make_golden_stores import FOLDER, PUBLISHED, originals
from reference_published import ReferencePublished
from tiers import by_tier

(NAME,) = PUBLISHED
GOLDEN = FOLDER / NAME
STEPS = PUBLISHED[NAME][1]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the golden run as a folder."""
    with zipfile.ZipFile(GOLDEN) as archive:
        archive.extractall(tmp_path / "run.zarr")
    return tmp_path / "run.zarr"


def tensors_of(path: Path) -> dict[str, bytes]:
    with bf16codecs.open_model(path) as model:
        return {name: tensor[...].tobytes() for name, tensor in model.items()}


def test_the_golden_run_is_read(tmp_path: Path) -> None:
    expected = {f"step-{n}.safetensors": originals(NAME)[f"step-{n}.safetensors"] for n in STEPS}
    run_to_safetensors(GOLDEN, tmp_path / "all")
    found = {name: content for name, content in files_in(tmp_path / "all").items() if content}
    assert {f"{Path(name).parent}.safetensors": c for name, c in found.items()} == expected
    assert verify_store(GOLDEN).steps == len(STEPS)
    for number in STEPS:
        zarr_to_safetensors(f"{GOLDEN}@{number}", tmp_path / "one", overwrite=True)
        assert (tmp_path / "one").read_bytes() == expected[f"step-{number}.safetensors"]


def test_changes_of_the_golden_run_lead_from_step_to_step(tmp_path: Path) -> None:
    for name, content in originals(NAME).items():
        (tmp_path / name).write_bytes(content)
    for have, number in ((30, 40), (30, 60), (40, 50), (50, 60)):
        with bf16codecs.open_model(tmp_path / f"step-{have}.safetensors") as model:
            tensors = {name: array.copy() for name, array in model.load().items()}
        del tensors["head.weight"]
        with bf16codecs.open_model(f"{GOLDEN}@{number}") as model:
            model.update(tensors, have=have)
        expected = tensors_of(tmp_path / f"step-{number}.safetensors")
        assert {n: a.tobytes() for n, a in tensors.items()} == {n: expected[n] for n in tensors}


def test_a_second_reader_reads_the_golden_run() -> None:
    before: dict[str, np.ndarray] = {}
    for number in STEPS:
        store = ReferencePublished(GOLDEN, number)
        ((_, content),) = store.files().items()
        assert content == originals(NAME)[f"step-{number}.safetensors"]
        tensors = {name: store.tensor(name) for name in store.tensors}
        for name, array in before.items():
            assert store.changed(name, array).tobytes() == tensors[name].tobytes()
        before = tensors


def test_a_newer_layout_asks_for_an_upgrade(run: Path) -> None:
    edit(run / "zarr.json", lambda root: root["attributes"]["bf16codecs"].update(layout=4))
    with pytest.raises(UnsupportedVersionError, match="upgrade bf16codecs"):
        bf16codecs.open_run(run)


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def ours(root: Any) -> Any:
    return root["attributes"]["bf16codecs"]


def set_in(*keys: Any) -> Callable[[Any], None]:
    """Return a function that sets a value, the last of the keys, or removes it for `...`."""
    *way, last, value = keys

    def change(root: Any) -> None:
        place = ours(root)
        for key in way:
            place = place[key]
        if value is ...:
            del place[last]
        else:
            place[last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        set_in("published", ...),
        set_in("published", "plan", ...),
        set_in("published", "plan", "plan/../zarr.json"),
        set_in("published", "plan", "zarr.json"),
        set_in("published", "plan", 3),
        set_in("published", "group", 0),
        set_in("published", "group", 3),
        set_in("published", "group", 4097),
        set_in("published", "group", True),
        set_in("published", "dropped", 1),
        set_in("published", "dropped", -2),
        set_in("published", "dropped", ...),
        set_in("steps", []),
        set_in("steps", {}),
        set_in("steps", ...),
        set_in("steps", 0, "step", 40),
        set_in("steps", 0, "step", -1),
        set_in("steps", 3, "step", 2**63),
        set_in("steps", 0, "step", "30"),
        set_in("steps", 0, "key", "steps/../plan"),
        set_in("steps", 0, "key", "steps/a/b"),
        set_in("steps", 0, "key", "/etc/x"),
        set_in("steps", 0, "key", "steps/.."),
        set_in("steps", 0, "whole", ...),
        set_in("steps", 0, "change", ...),
        set_in("steps", 1, "change", ...),
        set_in("steps", 1, "whole", {"whole.0.0": 100}),
        set_in("steps", 1, "change", {}),
        set_in("steps", 1, "change", {"../x": 100}),
        set_in("steps", 1, "change", {"x": 11}),
        set_in("steps", 1, "change", {"x": 2**53}),
        set_in("steps", 1, "change", {"x": "100"}),
        set_in("steps", 1, "change", ["x"]),
    ],
)
def test_damaged_attributes_are_refused(run: Path, change: Callable[[Any], Any]) -> None:
    edit(run / "zarr.json", change)
    with pytest.raises(StoreError):
        bf16codecs.open_run(run)


def test_unknown_keys_are_ignored(run: Path) -> None:
    edit(run / "zarr.json", set_in("published", "later", 1))
    edit(run / "zarr.json", set_in("steps", 0, "later", 1))
    verify_store(run)


def plan_of(run: Path) -> Path:
    (plan,) = (run / "plan").iterdir()
    return plan


def documents(plan: Any) -> Any:
    return plan["root"]["consolidated_metadata"]["metadata"]


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: plan.pop("root"),
        lambda plan: plan.pop("header"),
        lambda plan: plan.update(header=3),
        lambda plan: plan.update(header=plan["header"][:-8] + "}"),
        lambda plan: plan.update(root=[]),
        lambda plan: ours(plan["root"])["run"].update(group=3),
        lambda plan: ours(plan["root"])["steps"].clear(),
        lambda plan: ours(plan["root"])["tensors"].clear(),
        lambda plan: ours(plan["root"])["tensors"]["master"][0].update(path="nowhere"),
        lambda plan: ours(plan["root"])["tensors"]["master"][0].update(path="../x"),
        lambda plan: ours(plan["root"])["tensors"]["master"][0].update(path="step"),
        lambda plan: documents(plan).pop("master"),
        lambda plan: documents(plan).pop("step"),
        lambda plan: documents(plan)["master"].update(shape=[1, 24, 41]),
        lambda plan: documents(plan)["master"].update(shape=[]),
        lambda plan: documents(plan)["master"].update(data_type="float64"),
        lambda plan: documents(plan)["master"]["chunk_grid"]["configuration"].update(
            chunk_shape=[3, 12, 40]
        ),
        lambda plan: documents(plan)["master"]["chunk_grid"]["configuration"].update(
            chunk_shape=[2, 24, 40]
        ),
        lambda plan: documents(plan)["master"].update(codecs=[{"name": "bytes"}]),
        lambda plan: documents(plan)["master"]["chunk_key_encoding"].update(
            configuration={"separator": "/"}
        ),
    ],
)
def test_a_damaged_plan_is_refused(run: Path, change: Callable[[Any], Any]) -> None:
    edit(plan_of(run), change)
    with pytest.raises(BF16CodecsError):
        verify_store(run)


def ways(document: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to each value in a document."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield (key,)
        if isinstance(value, (dict, list)):
            yield from ((key, *way) for way in ways(value))


OTHERS = [..., None, True, -1, 0, 7, 1.5, "x", "", [], {}, [None], {"a": 1}, 2**70]


def test_whatever_a_plan_has_the_errors_are_of_this_package(run: Path) -> None:
    plan, chance = plan_of(run), random.Random(1)
    original = plan.read_text()
    all_ways = list(ways(json.loads(original)))
    for _ in range(by_tier(60, 1500)):
        document = json.loads(original)
        *way, last = chance.choice(all_ways)
        place, other = functools.reduce(operator.getitem, way, document), chance.choice(OTHERS)
        if other is ...:
            del place[last]
        else:
            place[last] = other
        plan.write_text(json.dumps(document))
        with suppress(BF16CodecsError), bf16codecs.open_run(run) as opened:
            for tensor in opened[60].values():
                tensor[...]
        with suppress(BF16CodecsError):
            verify_store(run)


def test_a_plan_that_is_missing_or_no_json_is_refused(run: Path) -> None:
    plan = plan_of(run)
    for content in (b"", b"[]", b"{", b"\xff", b"[" * 100_000):
        plan.write_bytes(content)
        with pytest.raises(StoreError):
            bf16codecs.open_run(run)
    plan.unlink()
    with pytest.raises(StoreError, match="is missing"):
        bf16codecs.open_run(run)


def pack(index: bytes, frames: bytes, magic: bytes = b"BF16PACK") -> bytes:
    return magic + len(index).to_bytes(4, "little") + index + frames


def split(content: bytes) -> tuple[list[list[int]], bytes]:
    at = 12 + int.from_bytes(content[8:12], "little")
    return json.loads(zlib.decompress(content[12:at]))["frames"], content[at:]


def index_of(entries: Any) -> bytes:
    return zlib.compress(json.dumps({"frames": entries}).encode())


def replaced(at: int, **values: int) -> Callable[[list[list[int]], bytes], bytes]:
    """Return a function that makes a pack with another entry."""
    columns = ["array", "chunk", "size"]

    def change(entries: list[list[int]], frames: bytes) -> bytes:
        for name, value in values.items():
            entries[at][columns.index(name)] = value
        return pack(index_of(entries), frames)

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda entries, frames: pack(index_of(entries), frames, b"BF16KCAP"),
        lambda entries, frames: pack(index_of(entries)[:-1], frames),
        lambda entries, frames: pack(index_of(entries) + b"x", frames),
        lambda entries, frames: pack(b"", frames),
        lambda entries, frames: pack(zlib.compress(b"[]"), frames),
        lambda entries, frames: pack(zlib.compress(b"{}"), frames),
        lambda entries, frames: pack(index_of({}), frames),
        lambda entries, frames: pack(index_of([[1, 2]]), frames),
        lambda entries, frames: pack(index_of([["a", 0, 5]]), frames),
        lambda entries, frames: pack(index_of(entries[:-1]), frames),
        lambda entries, frames: pack(index_of(entries), frames[:-1]),
        lambda entries, frames: pack(index_of(entries), frames + b"x"),
        lambda entries, frames: pack(index_of(entries * 2), frames * 2),
        lambda entries, frames: pack(index_of([]), b""),
        lambda entries, frames: b"BF16PACK" + b"\xff" * 4 + frames,
        replaced(0, array=99),
        replaced(0, array=-1),
        replaced(0, chunk=99),
        replaced(0, size=0),
        replaced(0, size=1 << 60),
        replaced(-1, size=1),
    ],
)
@pytest.mark.parametrize("kind", ["change", "whole"])
def test_a_damaged_pack_is_refused(
    run: Path, kind: str, change: Callable[[list[list[int]], bytes], bytes]
) -> None:
    (path,) = (run / "steps").glob(f"{'40' if kind == 'change' else '30'}-*/{kind}.0.0")
    content = change(*split(path.read_bytes()))
    path.write_bytes(content)
    # Whatever its size is: the root may have been made by the same hand.
    edit(
        run / "zarr.json",
        lambda root: [
            step[kind].update({path.name: len(content)})
            for step in ours(root)["steps"]
            if step["key"].endswith(path.parent.name)
        ],
    )
    with pytest.raises((StoreError, CorruptDataError)):
        verify_store(run)


def test_an_index_that_inflates_without_end_is_refused(run: Path) -> None:
    (path,) = (run / "steps").glob("40-*/change.0.0")
    entries, frames = split(path.read_bytes())
    bomb = zlib.compress(json.dumps({"frames": entries}).encode() + b" " * 200_000_000)
    content = pack(bomb, frames)
    path.write_bytes(content)
    edit(run / "zarr.json", set_in("steps", 1, "change", "change.0.0", len(content)))
    with pytest.raises(StoreError, match="damaged index"):
        verify_store(run)


def test_damage_to_a_pack_is_noticed_or_harmless(run: Path) -> None:
    expected = {number: tensors_of(Path(f"{run}@{number}")) for number in STEPS}
    for kind, number in (("change", 40), ("whole", 30)):
        (path,) = (run / "steps").glob(f"{number}-*/{kind}.1.0")
        content = path.read_bytes()
        for at in range(0, len(content), by_tier(61, 3)):
            path.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
            try:
                found = {number: tensors_of(Path(f"{run}@{number}")) for number in STEPS}
            except (BF16CodecsError, OSError):
                continue
            assert found == expected, at
        path.write_bytes(content)


def test_packs_with_damaged_frames_are_named(run: Path) -> None:
    for kind, number in (("change", 40), ("whole", 30)):
        (path,) = (run / "steps").glob(f"{number}-*/{kind}.1.0")
        content = path.read_bytes()
        named = 0
        for at in range(content.index(b"\xbf\x16\xc0\xde"), len(content), by_tier(97, 7)):
            path.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
            with suppress(CorruptDataError, StoreError):
                verify_store(run)
                continue
            with pytest.raises(BF16CodecsError, match=rf"steps/{number}-\w+/{kind}\.1\.0"):
                verify_store(run)
            named += 1
        assert named > 3
        path.write_bytes(content)


def test_packs_that_are_cut_or_missing_are_named(run: Path) -> None:
    (path,) = (run / "steps").glob("40-*/change.2.0")
    content = path.read_bytes()
    for size in (0, 5, 100, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises((StoreError, CorruptDataError), match=r"change\.2\.0"):
            verify_store(run)
    path.unlink()
    with pytest.raises(StoreError, match=r"change\.2\.0"):
        verify_store(run)
    with bf16codecs.open_model(f"{run}@30") as model:
        model.load()  # which needs it not


def test_differences_that_no_step_is_read_from_are_verified(run: Path) -> None:
    """Those of steps that are whole as well, for whoever has the step before."""
    (path,) = (run / "steps").glob("50-*/change.0.0")
    content = path.read_bytes()
    path.write_bytes(content[:-40] + bytes([content[-40] ^ 1]) + content[-39:])
    with pytest.raises(BF16CodecsError):
        verify_store(run)
    path.write_bytes(content)
    (other,) = (run / "steps").glob("60-*/change.0.0")
    path.write_bytes(other.read_bytes())
    size = other.stat().st_size
    edit(run / "zarr.json", set_in("steps", 2, "change", "change.0.0", size))
    with pytest.raises(BF16CodecsError):
        verify_store(run)
    path.unlink()
    with pytest.raises(StoreError, match=r"change\.0\.0"):
        verify_store(run)


def test_an_index_of_many_entries_is_refused(run: Path) -> None:
    (path,) = (run / "steps").glob("40-*/change.0.0")
    _, frames = split(path.read_bytes())
    content = pack(zlib.compress(b'{"frames":[' + b"[]," * 20_000_000 + b"[]]}", 9), frames)
    path.write_bytes(content)
    edit(run / "zarr.json", set_in("steps", 1, "change", "change.0.0", len(content)))
    with pytest.raises(StoreError, match="not credible"):
        verify_store(run)
