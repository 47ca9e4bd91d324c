"""The store fuzzer finds each kind of fault."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

import bf16codecs
import store_fuzz
import store_fuzz_traps
import tiers
from checkout import package_environment
from store_fuzz_bench import Bench, Plan, families, mend, put, schedule
from store_fuzz_documents import documents
from store_fuzz_drive import Driver, Verdict
from store_fuzz_mutations import Json, Mutant
from store_fuzz_seeds import SEEDS, make_seeds
from store_fuzz_truth import Seed, load_seed

KINDS = [
    "zarr3-none",
    "zarr2-huffman",
    "hdf5-zstd",
    "hdf5-filters",
    "zip-none",
    "safetensors-shards",
    "based-zarr2",
    "repeated-hdf5",
    "based-repeated",
    "checkpoint-zarr3",
    "checkpoint-zip",
    "checkpoint-based",
    "checkpoint-hdf5",
    "run-zarr3",
    "run-zarr2",
    "run-hdf5",
]


KINDS = tiers.by_tier(KINDS[::2], KINDS)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    make_seeds(folder, KINDS)
    return folder


def read(folder: Path, seed: Seed, mutant: Mutant, turn: int = 0) -> Verdict:
    """Read a damaged store, and restore the folder."""
    folder.mkdir()
    path = folder / seed.store
    for key, content in {**seed.files, **mutant.changes}.items():
        put(path, key, content)
    verdict = Driver(seed, path).drive(mutant.unknowable, turn)
    for key in mutant.changes:
        mend(path, key, seed.files)
    found = {key: (path / key if key else path).read_bytes() for key in seed.files}
    assert found == seed.files
    return verdict


def test_sound_stores_are_read_rightly(workspace, tmp_path):
    for i, kind in enumerate(KINDS):
        seed = load_seed(workspace, kind)
        for turn in tiers.by_tier([i % 4], range(4)):
            verdict = read(tmp_path / f"{kind}-{turn}", seed, Mutant("nothing", {}), turn)
            assert verdict.findings == [], (kind, turn)
            assert {outcome for _, outcome in verdict.outcomes} == {"exact"}, (kind, turn)


def test_other_data_are_found_unless_they_cannot_be_known(workspace, tmp_path):
    seed = load_seed(workspace, "zarr3-none")
    changes = {"w/a/c.1.0": bytes(len(seed.files["w/a/c.1.0"]))}
    groups = {group for group, _ in read(tmp_path / "x", seed, Mutant("", changes)).findings}
    assert groups >= {"load: other data", "slice: other data"}
    unknowable = Mutant("", changes, frozenset({"w.a"}))
    verdict = read(tmp_path / "y", seed, unknowable)
    assert verdict.findings == []
    assert verdict.outcomes["restore", "CorruptDataError"] == 1  # still has to detect it


@pytest.mark.parametrize(
    "error",
    [TypeError("x"), MemoryError(), bf16codecs.errors.StoreError("\n")],
    ids=["TypeError", "MemoryError", "two lines"],
)
def test_errors_that_are_not_documented_are_found(workspace, tmp_path, monkeypatch, error):
    def fail(model):
        raise error

    monkeypatch.setattr(bf16codecs.Model, "metadata", fail)
    verdict = read(tmp_path / "x", load_seed(workspace, "zarr3-none"), Mutant("", {}))
    assert [group.partition(":")[0] for group, _ in verdict.findings] == ["metadata"]


def test_files_that_are_left_are_found(workspace, tmp_path, monkeypatch):
    seed = load_seed(workspace, "zarr3-none")
    monkeypatch.setattr(
        bf16codecs.Model, "metadata", lambda model: (tmp_path / "x" / "left").write_text("")
    )
    groups = [group for group, _ in read(tmp_path / "x", seed, Mutant("", {})).findings]
    assert "files were left" in groups


def test_a_file_that_is_changed_is_found(workspace, tmp_path, monkeypatch):
    seed = load_seed(workspace, "hdf5-zstd")

    def touch(model):
        (tmp_path / "x" / seed.store).write_bytes(seed.files[""] + b"x")

    monkeypatch.setattr(bf16codecs.Model, "metadata", touch)
    (tmp_path / "x").mkdir()
    put(tmp_path / "x" / seed.store, "", seed.files[""])
    verdict = Driver(seed, tmp_path / "x" / seed.store).drive(frozenset(), 0)
    assert "the file was changed" in [group for group, _ in verdict.findings]


def test_every_document_is_put_back(workspace):
    """A document that is written unchanged makes the same store."""
    for kind in KINDS:
        seed = load_seed(workspace, kind)
        found = documents(seed)
        assert found, kind
        for name, (text, place) in list(found.items())[:: tiers.by_tier(4, 1)]:
            files = {**seed.files, **place(text)}
            again = documents(Seed(kind, seed.store, seed.original, files, {}))
            assert {n: json.loads(t) for n, (t, _) in again.items()} == {
                n: json.loads(t) for n, (t, _) in found.items()
            }, (kind, name)


def test_values_are_replaced_deleted_doubled_and_swapped():
    tree = {"a": [1, 2], "b": "x"}
    family = Json({"": (json.dumps(tree).encode(), lambda text: {"": text})})
    texts = {family[i].changes[""] for i in range(len(family))}
    assert {
        *(b'{"a":null,"b":"x"}', b'{"a":[1,2],"b":NaN}', b'{"a":[1,2]}', b'{"a":"x","b":[1,2]}'),
        *(b'{"a":[2,1],"b":"x"}', b'{"a":[1,2],"b":"x","b":null}', b'{"x":[1,2],"b":"x"}', b""),
    } <= texts


def test_every_case_comes_once(workspace):
    plan = Plan(workspace, (), "^(json|files)$", seed=3, cases=0, deadline=0)
    seeds = {"x": {"json": range(10), "files": range(7), "bytes": range(5)}}
    cases = list(schedule(plan, seeds))
    assert sorted(cases) == [
        *(("x", "files", i) for i in range(7)),
        *(("x", "json", i) for i in range(10)),
    ]
    assert cases[:4] == list(schedule(Plan(workspace, (), "^(json|files)$", 3, 4, 0), seeds))
    for kind, expected in {
        "zip-none": {"bytes", "zip-members"},
        "hdf5-zstd": {"bytes", "objects", "journals"},
        "based-zarr2": {"bytes", "files", "bases"},
    }.items():
        assert set(families(load_seed(workspace, kind))) >= expected


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_children_that_die_hang_or_take_too_much_are_named(tmp_path):
    plan = Plan(tmp_path, (), "", 0, 0, time.time() + 60, seconds=0.5, megabytes=10)
    report, start = store_fuzz.Report(), 0
    while start is not None:
        start = store_fuzz.Watch(plan, start, report, store_fuzz_traps.work).run()
    assert list(report.cases) == [*store_fuzz_traps.TRAPS, "sound"]
    found = [(group.partition(":")[0], cases[0][0]) for group, cases in report.findings.items()]
    assert found == [(name, f"{name}/trap/0") for name in store_fuzz_traps.TRAPS]


def test_there_are_seeds_of_every_kind():
    assert {name.partition("-")[0] for name in SEEDS} >= {"zarr3", "zarr2", "hdf5", "zip", "zarr"}


def test_damaged_stores(workspace):
    """Without HDF5: libhdf5 would end this process, as it ends children of the fuzzer."""
    kinds = tuple(kind for kind in KINDS if "hdf5" not in kind)
    # Beside others, and with all that tests import, a case takes four times as long as alone.
    plan = Plan(workspace, kinds, "", tiers.SEED, tiers.by_tier(16, 120), math.inf, seconds=60)
    bench = Bench(plan)
    for name, family, number in schedule(plan, bench.families):
        mutant = bench.families[name][family][number]
        verdict = bench.run(name, family, number, mutant)
        assert verdict.findings == [], f"{name}/{family}/{number}: {mutant.label}"


@pytest.mark.slow
def test_a_sample_of_damaged_stores(tmp_path):
    """A finding names its case, which `store_fuzz.py --case` repeats."""
    script = Path(store_fuzz.__file__)
    done = subprocess.run(
        [sys.executable, script, "--cases", "320", "--minutes", "5", "--seed", str(tiers.SEED)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=package_environment(PYTHONSAFEPATH=""),  # its modules lie beside it
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("320 stores in ")
