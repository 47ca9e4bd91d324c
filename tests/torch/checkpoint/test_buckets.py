"""Checkpoints in an object store: a training job leaves the old or the new one there."""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bf16codecs import open_model
from bf16codecs.convert import verify_store
from bf16codecs.errors import BaseMismatchError, CheckpointWarning, StoreError
from checkpoint_calls import failure, numbers
from lazy_imports import lazily
from object_store import Faults, dying
from tiers import by_tier
from training_jobs import run_jobs
from waiting import wait_until

torch = lazily("torch")
dcp = lazily("torch.distributed.checkpoint")
checkpoint = lazily("bf16codecs.torch.checkpoint")

lease = pytest.importorskip("bf16codecs.store.remote.lease")

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore::bf16codecs.errors.LeftoverWarning"),
    pytest.mark.usefixtures("impatient"),
]

KILLED = 128 + 9
UNFINISHED = "bf16codecs.torch.checkpoint.unfinished"

State = dict[str, Any]


class Runs:
    """Checkpoints in a folder of a bucket."""

    def __init__(self, address: str, s3: dict[str, str], fs: Any) -> None:
        self.address, self.s3, self.fs = address, s3, fs

    def save(self, name: str, state: State, **options: Any) -> None:
        writer = checkpoint.StoreWriter(self.at(name), storage_options=self.s3, **options)
        dcp.save(state, storage_writer=writer)

    def load(self, name: str, state: State) -> State:
        dcp.load(
            state, storage_reader=checkpoint.StoreReader(self.at(name), storage_options=self.s3)
        )
        return state

    def at(self, name: str) -> str:
        return f"{self.address}/{name}"

    def make_placeholder(self, name: str) -> None:
        bucket, _, key = self.address.removeprefix("s3://").partition("/")
        self.fs.call_s3("put_object", Bucket=bucket, Key=f"{key}/{name}", Body=b"")

    def names(self) -> list[str]:
        self.fs.invalidate_cache()
        found: list[str] = []
        with suppress(FileNotFoundError):
            found = self.fs.ls(self.address)
        return sorted(filter(None, (path.rpartition("/")[2] for path in found)))

    def stored_keys(self) -> list[str]:
        self.fs.invalidate_cache()
        return sorted(self.fs.find(self.address)) if self.fs.exists(self.address) else []

    def base(self, name: str) -> str | None:
        with open_model(self.at(name), storage_options=self.s3) as model:
            reference = model.info().to_json()["base"]
        return None if reference is None else reference["path"]


@pytest.fixture
def runs(bucket: str, s3: dict[str, str], fsspec: Any) -> Runs:
    return Runs(bucket, s3, fsspec.filesystem("s3", **s3))


def step(n: int) -> State:
    return {"w": numbers() + n * 1e-4, "bias": numbers((9,)), "step": n, "epochs": [1, n]}


def loaded(runs: Runs, name: str) -> int:
    """Load a checkpoint, which must have all of a step's numbers; return the step."""
    found = runs.load(
        name, {"w": torch.zeros(64, 300), "bias": torch.zeros(9), "step": 0, "epochs": [0, 0]}
    )
    expected = step(found["step"])
    assert all(torch.equal(found[name], expected[name]) for name in ("w", "bias"))
    assert found["epochs"] == expected["epochs"]
    return int(found["step"])


def steps(runs: Runs) -> list[int]:
    """Return the steps in the folder, each of which has to be whole."""
    found = [loaded(runs, name) for name in runs.names()]
    assert [f"step-{n}.zarr" for n in found] == runs.names()
    return found


def test_saved_and_loaded(runs: Runs) -> None:
    runs.save("step-1.zarr", step(1), chunk_size=1 << 14)
    assert steps(runs) == [1]
    assert verify_store(runs.at("step-1.zarr"), storage_options=runs.s3).tensors == 2
    assert not [key for key in runs.stored_keys() if "scratch" in key]
    error = failure(runs.save, "step-1.zarr", step(2))
    assert isinstance(error, FileExistsError)
    assert "overwrite=True" in str(error)
    runs.save("step-1.zarr", step(2), overwrite=True)
    keys = runs.stored_keys()
    assert loaded(runs, "step-1.zarr") == 2
    runs.save("step-1.zarr", step(3), overwrite=True)
    runs.save("step-1.zarr", step(2), overwrite=True)
    assert loaded(runs, "step-1.zarr") == 2
    assert runs.stored_keys() == keys, "something is left"


def test_as_on_a_disk(runs: Runs, tmp_path: Path) -> None:
    """The keys and their bytes are those of a store on the disk."""
    for n in (1, 2):
        options = {} if n == 1 else {"base": "previous"}
        runs.save(f"step-{n}.zarr", step(n), **options)
        writer = checkpoint.StoreWriter(tmp_path / f"step-{n}.zarr", **options)
        dcp.save(step(n), storage_writer=writer)
        copy = tmp_path / f"copy-{n}"
        runs.fs.get(f"{runs.at(f'step-{n}.zarr')}/", f"{copy}/", recursive=True)
        files = {p.relative_to(copy): p.read_bytes() for p in copy.rglob("*") if p.is_file()}
        local = tmp_path / f"step-{n}.zarr"
        assert files == {p.relative_to(local): p.read_bytes() for p in local.rglob("c.*")} | {
            p.relative_to(local): p.read_bytes() for p in local.rglob("zarr.json")
        }


def test_series(runs: Runs) -> None:
    for n in range(1, 6):
        runs.save(f"step-{n}.zarr", step(n), base="previous", keep_last=2)
        kept = list(range(max(1, n - 1), n + 1))
        assert steps(runs) == kept
        bases = [runs.base(f"step-{own}.zarr") for own in kept]
        assert bases == [None, *(f"step-{own}.zarr" for own in kept[:-1])]
    runs.save("step-6.zarr", step(6), keep_last=1, keep_every=4)
    assert steps(runs) == [4, 6]
    with pytest.raises(ValueError, match="name it like step-600"):
        raise failure(runs.save, "last.zarr", step(7), keep_last=1)


def test_differences_when_one_replaces_another(runs: Runs) -> None:
    """Their keys are other ones, and so are those of the next one."""
    for n in (1, 2, 3):
        runs.save(f"step-{n}.zarr", step(n), base="previous")
    for _ in range(2):
        runs.save("step-2.zarr", step(2), base="previous", overwrite=True)
        assert steps(runs) == [1, 2, 3]
        assert runs.base("step-2.zarr") == "step-1.zarr"
    runs.save("step-1.zarr", step(1), overwrite=True)
    assert steps(runs) == [1, 2, 3]
    assert runs.base("step-2.zarr") is None, "it was rewritten before its base was replaced"


def test_what_is_not_removed(runs: Runs) -> None:
    for n in (1, 2):
        runs.save(f"step-{n}.zarr", step(n))
    runs.fs.pipe(runs.at("step-1.zarr/README.md"), b"mine")
    runs.fs.pipe(runs.at("step-0.zarr/notes.txt"), b"mine")
    runs.fs.pipe(runs.at("step-0.txt"), b"mine")
    with pytest.warns(CheckpointWarning, match=r"step-1\.zarr: not removed: 'README\.md' in"):
        runs.save("step-3.zarr", step(3), keep_last=1)
    assert runs.names() == ["step-0.txt", "step-0.zarr", "step-1.zarr", "step-3.zarr"]
    runs.fs.rm(runs.at("step-1.zarr/README.md"))
    runs.fs.pipe(runs.at("odd.zarr/zarr.json"), b"{")
    with pytest.warns(CheckpointWarning, match="may be a difference to any checkpoint"):
        runs.save("step-4.zarr", step(4), keep_last=1)
    runs.fs.rm(runs.at("odd.zarr"), recursive=True)
    runs.save("step-5.zarr", step(5), keep_last=1)
    assert runs.names() == ["step-0.txt", "step-0.zarr", "step-5.zarr"]


def test_other_kinds_of_stores_are_bases_too(runs: Runs, tmp_path: Path) -> None:
    """A fine-tune of Zarr format 2, or in one file, beside the run: its base stays."""
    from bf16codecs.convert import safetensors_to_zarr

    runs.save("step-1.zarr", step(1))
    source = tmp_path / "tuned.safetensors"
    pytest.importorskip("safetensors.torch").save_file({"w": numbers() + 1e-4}, source)
    for name, options in (("old.zarr", {"zarr_format": 2}), ("one.zarr.zip", {})):
        local = tmp_path / "step-1.zarr"
        if not local.exists():
            runs.fs.get(f"{runs.at('step-1.zarr')}/", f"{local}/", recursive=True)
        safetensors_to_zarr(source, tmp_path / name, base=local, **options)
        runs.fs.put(str(tmp_path / name), runs.at(name), recursive=True)
        with pytest.warns(CheckpointWarning, match="not rewritten, so that its base"):
            runs.save(f"step-{2 + len(options)}.zarr", step(2), keep_last=1)
        assert "step-1.zarr" in runs.names()
        runs.fs.rm(runs.at(name), recursive=True)


def test_requests(runs: Runs, s3_faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk is sent once, and the rest is few: nothing is listed that is not needed."""
    state = {f"layers.{i}.w": numbers((64, 128), i) for i in range(40)} | {
        f"lr{i}": i / 7 for i in range(50)
    }
    runs.save("step-1.zarr", state)
    s3_faults.clear()
    for name in ("_RENEW_SECONDS", "_FRESH_SECONDS"):
        monkeypatch.setattr(lease, name, 60)
    runs.save("step-2.zarr", state)
    chunks = [path for method, path in s3_faults.requests if "/layers/" in path]
    documents = [path for path in chunks if path.endswith("zarr.json")]
    assert len(chunks) == 40 + len(documents)
    assert len(s3_faults.requests) - len(chunks) < 30, s3_faults.requests


def test_servers_that_fail_once(runs: Runs, s3_faults: Faults) -> None:
    for fault in ("busy", "lost"):
        seen: set[tuple[str, str]] = set()

        def at_first(
            number: int, method: str, path: str, fault: str = fault, seen: Any = seen
        ) -> str:
            is_first = (method, path) not in seen
            seen.add((method, path))
            return fault if is_first else ""

        s3_faults.fault = at_first
        runs.save(f"{fault}-step-1.zarr", step(1))
        s3_faults.clear()
        assert loaded(runs, f"{fault}-step-1.zarr") == 1


@pytest.mark.parametrize("last", by_tier([9], [0, 3, 6, 9, 12, 15]))
def test_credentials_that_expire(runs: Runs, s3_faults: Faults, last: int) -> None:
    runs.save("step-1.zarr", step(1))
    s3_faults.clear()
    s3_faults.fault = lambda number, method, path: "denied" if number > last else ""
    error = failure(runs.save, "step-1.zarr", step(2), overwrite=True)
    assert isinstance(error, PermissionError)
    assert "Access Denied" in str(error)
    s3_faults.clear()
    assert steps(runs) == [1]
    runs.save("step-1.zarr", step(2), overwrite=True)
    assert loaded(runs, "step-1.zarr") == 2


@pytest.mark.parametrize("is_sent", [False, True])
def test_killed_at_any_request(runs: Runs, is_sent: bool) -> None:
    """The old one is there, or the new one; the next save finds what is left, and goes on."""
    runs.save("step-1.zarr", step(1), base="previous", keep_last=1)
    runs.save("step-1.zarr", step(1), overwrite=True)
    seen = set()
    for number in range(1, 200, by_tier(7, 3)):
        with suppress(dcp.api.CheckpointException), dying(number, is_sent):
            runs.save("step-1.zarr", step(2), overwrite=True)
            seen.add("done")
        found = loaded(runs, "step-1.zarr")
        seen.add(found)
        if "done" in seen:
            break
        runs.save("step-1.zarr", step(1), overwrite=True)
        assert steps(runs) == [1]
    assert seen == {1, 2, "done"}
    runs.save("step-1.zarr", step(1), overwrite=True)
    keys = runs.stored_keys()
    runs.save("step-2.zarr", step(1), keep_last=1)
    assert len(runs.stored_keys()) == len(keys)


@pytest.mark.slow
@pytest.mark.parametrize("is_sent", [False, True])
def test_killed_while_it_removes(runs: Runs, is_sent: bool) -> None:
    """Every checkpoint that is seen is whole, and in the end nothing is left."""
    for number in range(1 + is_sent, 400, 11):
        for n in (1, 2):
            runs.save(f"step-{n}.zarr", step(n), base="previous", overwrite=True)
        is_done = False
        with suppress(dcp.api.CheckpointException), dying(number, is_sent):
            runs.save("step-3.zarr", step(3), base="previous", keep_last=1, overwrite=True)
            is_done = True
        for name in runs.names():
            if lease_free(runs, name):
                loaded(runs, name)
        if is_done:
            break
        runs.save("step-3.zarr", step(3), base="previous", overwrite=True)
        assert loaded(runs, "step-3.zarr") == 3
    assert steps(runs) == [3]


def lease_free(runs: Runs, name: str) -> bool:
    """Return whether a store is there, rather than a note of one that is made or removed."""
    document = runs.fs.cat_file(runs.at(f"{name}/zarr.json"))
    return lease.without_note(document) is not None


def test_leftovers_of_other_steps(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that died in a step and goes on with another one: retention removes what is left."""
    monkeypatch.setattr(lease, "DEAD_SECONDS", 60)
    with pytest.raises(dcp.api.CheckpointException), dying(12, True):
        runs.save("step-1.zarr", step(1))
    assert runs.names() == ["step-1.zarr"]
    latest = partial(checkpoint.latest_checkpoint, runs.address, storage_options=runs.s3)
    assert latest() is None, "it is not complete"
    runs.save("step-2.zarr", step(2), keep_last=5)
    assert latest() == runs.at("step-2.zarr")
    assert runs.names() == ["step-1.zarr", "step-2.zarr"], "its writer may be alive"
    monkeypatch.setattr(lease, "DEAD_SECONDS", 0)
    runs.save("step-3.zarr", step(3), keep_last=5)
    assert steps(runs) == [2, 3]


def test_a_writer_that_is_alive_keeps_its_store(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = checkpoint.StoreWriter(runs.at("step-1.zarr"), storage_options=runs.s3)
    finish = writer.finish

    def later(*args: Any, **options: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(f"{UNFINISHED}._open", set())  # as in another process
            error = failure(runs.save, "step-1.zarr", step(9))
            assert isinstance(error, BlockingIOError)
            for n in (2, 3):
                runs.save(f"step-{n}.zarr", step(n), keep_last=5)
        finish(*args, **options)

    writer.finish = later
    dcp.save(step(1), storage_writer=writer)
    assert steps(runs) == [1, 2, 3]


def begun(runs: Runs, name: str, n: int, **options: Any) -> tuple[Any, Callable[[], None]]:
    """Begin a checkpoint; return its writer, and a function that ends it."""
    from torch.distributed.checkpoint import DefaultSavePlanner

    writer = checkpoint.StoreWriter(runs.at(name), storage_options=runs.s3, **options)
    planner = DefaultSavePlanner()
    planner.set_up_planner(step(n), None, True)
    plans, metadata = planner.create_global_plan([planner.create_local_plan()])
    (plan,) = writer.prepare_global_plan(plans)
    results = writer.write_data(plan, planner).wait()
    return writer, lambda: writer.finish(metadata, [results])


def test_a_job_that_ends_while_another_removes(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its note was seen, and took long to change: by then, it is a checkpoint like others."""
    writer, end = begun(runs, "other-step-1.zarr", 1)
    runs.save("step-1.zarr", step(1), keep_last=5)
    end()
    monkeypatch.setattr(lease, "DEAD_SECONDS", 0)
    folder = writer._folder(runs.at("step-2.zarr"))
    looked_at = type(folder).attributes
    monkeypatch.setattr(type(folder), "attributes", lambda self, at: looked_at(self, at))
    folder.remove_leftovers(runs.at("other-step-1.zarr"))
    runs.save("step-2.zarr", step(2), keep_last=5)
    assert loaded(runs, "other-step-1.zarr") == 1


def test_processes_that_outlive_their_coordinator(runs: Runs) -> None:
    """Those of a job that was given up get an error, and what they wrote is in nobody's way."""
    writer, _ = begun(runs, "step-1.zarr", 1)
    commit = writer._commit
    commit._processes = 2
    sink = commit.draft.sink.shared()
    sink.put("w/c.7", b"x")
    writer.close()
    runs.fs.pipe(runs.at("step-1.zarr/w/c.8"), b"x")
    with pytest.raises(StoreError, match="took over, or ended this"):
        commit.draft.sink.shared().put("w/c.9", b"x")
    assert runs.stored_keys()
    runs.save("step-1.zarr", {"other": numbers()})
    assert not [key for key in runs.stored_keys() if "/w/" in key]
    runs.save("step-1.zarr", step(1), overwrite=True)
    assert steps(runs) == [1]


def test_names_that_mean_something_in_addresses(runs: Runs) -> None:
    """Stores of such names need their base as others do."""
    for n in (1, 2):
        runs.save(f"step-{n}.zarr", step(n), base="previous")
    for name in by_tier(["tuned #2.zarr"], ["tuned #2.zarr", "tuned?2.zarr", "tuned%232.zarr"]):
        runs.fs.copy(runs.at("step-2.zarr"), runs.at(name), recursive=True)
        with pytest.warns(CheckpointWarning, match="not rewritten, so that its base"):
            runs.save("step-3.zarr", step(3), keep_last=1, overwrite=True)
        assert runs.names() == ["step-1.zarr", "step-3.zarr", name]
        runs.fs.rm(runs.at(name), recursive=True)
        runs.save("step-2.zarr", step(2), base="previous")


def test_schemes_with_two_names(runs: Runs) -> None:
    runs.save("step-1.zarr", step(1))
    base, runs.address = runs.at("step-1.zarr"), runs.address.replace("s3://", "s3a://")
    runs.save("step-2.zarr", step(2), base=base)
    runs.save("step-3.zarr", step(3), keep_last=2)
    runs.address = runs.address.replace("s3a://", "s3://")
    assert steps(runs) == [2, 3]
    assert runs.base("step-2.zarr") is None


def test_a_base_that_is_removed_meanwhile(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.save("step-1.zarr", step(1))
    writer, end = begun(runs, "tuned.zarr", 1, base=runs.at("step-1.zarr"))
    with pytest.warns(CheckpointWarning, match="not rewritten, so that its base"):
        runs.save("step-2.zarr", step(2), keep_last=1)
    end()
    assert loaded(runs, "tuned.zarr") == 1
    writer, end = begun(runs, "step-3.zarr", 3, base=runs.at("step-2.zarr"))
    runs.fs.rm(runs.at("step-2.zarr"), recursive=True)
    with pytest.raises((BaseMismatchError, StoreError), match=r"step-2\.zarr"):
        end()
    writer.close()


def test_a_job_that_died_before_it_removed_anything(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its note is beside a checkpoint that is whole, and does not keep it for ever."""
    from bf16codecs.store.remote.object_folder import ObjectFolder

    monkeypatch.setattr(lease, "DEAD_SECONDS", 60)
    for n in (0, 1, 2, 3):
        base = {2: runs.at("step-1.zarr")}.get(n)
        runs.save(f"step-{n}.zarr", step(n), base=base)
    folder = ObjectFolder(runs.at("step-2.zarr"), runs.s3)
    dead = lease.Lease(folder, folder.read("zarr.json"))
    dead._ended.set()
    dead._thread.join()
    with pytest.warns(CheckpointWarning, match=r"step-2\.zarr: not removed: .*is writing it"):
        runs.save("step-4.zarr", step(4), keep_last=1)
    assert steps(runs) == [1, 2, 4], "one that stays needs its base"
    monkeypatch.setattr(lease, "DEAD_SECONDS", 0)
    runs.save("step-5.zarr", step(5), keep_last=1)
    assert steps(runs) == [5]


def test_files_of_other_programs_in_the_folder(runs: Runs) -> None:
    for name in ("code.zip", "data.h5", "log.txt"):
        runs.fs.pipe(runs.at(name), b"x")
    for name in ("", "step-2.zarr/"):  # as consoles make folders
        runs.make_placeholder(name)
    for n in (1, 2):
        runs.save(f"step-{n}.zarr", step(n), keep_last=1, overwrite=True)
        runs.save(f"step-{n}.zarr", step(n), overwrite=True)
    assert loaded(runs, "step-2.zarr") == 2
    assert runs.names() == ["code.zip", "data.h5", "log.txt", "step-2.zarr"]
    runs.fs.pipe(runs.at("odd.zarr/zarr.json"), b"{")
    runs.save("step-3.zarr", step(3), overwrite=True)  # replaces nothing
    assert isinstance(failure(runs.save, "step-3.zarr", step(3), overwrite=True), StoreError)


def test_leftovers_with_files_of_the_user(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay, with a warning of their own; others are removed."""
    monkeypatch.setattr(lease, "DEAD_SECONDS", 60)
    for n in (1, 2):
        with pytest.raises(dcp.api.CheckpointException), dying(12, True):
            runs.save(f"step-{n}.zarr", step(n))
    runs.fs.pipe(runs.at("step-1.zarr/README.md"), b"mine")
    runs.save("step-3.zarr", step(3), keep_last=5)
    monkeypatch.setattr(lease, "DEAD_SECONDS", 0)
    with pytest.warns(CheckpointWarning, match=r"step-1\.zarr: what a dead job left .*README"):
        runs.save("step-4.zarr", step(4), keep_last=5)
    assert runs.names() == ["step-1.zarr", "step-3.zarr", "step-4.zarr"]


def test_another_try_in_one_process(runs: Runs) -> None:
    """A writer of a save that failed may still be known to somebody."""
    writer, end = begun(runs, "step-1.zarr", 1)
    runs.save("step-1.zarr", step(1))
    with pytest.raises(StoreError, match="this process has begun another checkpoint there"):
        end()
    assert steps(runs) == [1]
    writer.close()


def test_the_last_one_that_cannot_be_read_for_now(runs: Runs, s3_faults: Faults) -> None:
    """A job must not go on from an older one, nor begin anew."""
    latest = partial(checkpoint.latest_checkpoint, runs.address, storage_options=runs.s3)
    for n in (1, 2):
        runs.save(f"step-{n}.zarr", step(n), base="previous")
    for name in ("step-2.zarr", "step-1.zarr"):
        s3_faults.fault = lambda number, method, path, name=name: (
            "denied" if path.endswith(f"{name}/zarr.json") else ""
        )
        with pytest.raises((OSError, StoreError), match=r"Denied|Forbidden|denied"):
            latest()
    s3_faults.clear()
    assert latest() == runs.at("step-2.zarr")


def test_endpoints_of_the_environment_and_of_profiles(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the service's own tools find them, also with plain HTTP."""
    fsspec = pytest.importorskip("fsspec")
    # Of another test, which had no credentials: fsspec takes it again for the same options.
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    address, s3 = runs.s3["endpoint_url"], runs.s3
    runs.s3 = {}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    runs.save("step-1.zarr", step(1))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    config = tmp_path / "config"
    config.write_text(
        "[profile lab]\naws_access_key_id = k\naws_secret_access_key = s\n"
        f"endpoint_url = {address}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    runs.save("step-2.zarr", step(2))
    found = checkpoint.latest_checkpoint(runs.address)
    assert found == runs.at("step-2.zarr")
    capital = runs.address.replace("s3://", "S3://")
    assert checkpoint.latest_checkpoint(capital) == found
    runs.s3 = s3


def test_options_with_the_names_of_obstore(runs: Runs) -> None:
    s3 = runs.s3
    runs.s3 = {
        "access_key_id": s3["key"],
        "secret_access_key": s3["secret"],
        "endpoint": s3["endpoint_url"],
        "region": "us-east-1",
    }
    for n in (1, 2, 3):
        runs.save(f"step-{n}.zarr", step(n), base="previous", keep_last=2)
    assert steps(runs) == [2, 3]
    last = checkpoint.latest_checkpoint(runs.address, storage_options=runs.s3)
    assert last == runs.at("step-3.zarr")
    runs.s3 = s3


def test_an_unfinished_one_is_undone(runs: Runs) -> None:
    """By its writer, or in another thread once nobody knows the writer."""
    writer, _ = begun(runs, "c.zarr", 1)
    assert runs.names() == ["c.zarr"]
    writer.close()
    assert runs.names() == []
    writer, _ = begun(runs, "c.zarr", 1)
    del writer, _
    gc.collect()
    assert wait_until(lambda: runs.names() == [])


@pytest.mark.slow
def test_a_process_that_ends_early(runs: Runs, run_python: Any) -> None:
    """It leaves nothing, neither at its end nor at that of a process that was forked."""
    code = """if True:
        import json, os, sys, torch
        from torch.distributed.checkpoint import DefaultSavePlanner
        from bf16codecs.torch.checkpoint import StoreWriter
        writer = StoreWriter(sys.argv[1], storage_options=json.loads(sys.argv[2]))
        planner = DefaultSavePlanner()
        planner.set_up_planner({"w": torch.zeros(100, 100)}, None, True)
        plans, _ = planner.create_global_plan([planner.create_local_plan()])
        plans = writer.prepare_global_plan(plans)
        writer.write_data(plans[0], planner)
        if os.fork() == 0:
            sys.exit()
        os.wait()
        writer._commit.draft.lease.check()
    """
    done = run_python(code, runs.at("c.zarr"), json.dumps(runs.s3))
    assert "Error" not in done.stderr, done.stderr
    assert runs.names() == []


def test_bad_places(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = checkpoint.StoreWriter
    with pytest.raises(ValueError, match="a whole bucket: name a folder in it"):
        writer("s3://bucket")
    with pytest.raises(ValueError, match="in object stores, stores are folders"):
        writer("s3://bucket/c.h5")
    dcp.save(step(1), storage_writer=writer(tmp_path / "base.zarr"))
    with pytest.raises(StoreError, match="upload it"):
        writer(runs.at("c.zarr"), base=tmp_path / "base.zarr", storage_options=runs.s3)
    for make in (writer, checkpoint.latest_checkpoint):
        with pytest.raises(ValueError, match="two slashes behind its scheme"):
            make(Path(f"{runs.address}/c.zarr"))
        with pytest.raises(ValueError, match="or in object stores"):
            make("https://host/c.zarr")
    dcp.save(step(1), storage_writer=writer(f"file://{tmp_path}/of-url.zarr"))
    assert (tmp_path / "of-url.zarr").exists()
    nowhere = writer("s3://nothing/c.zarr", storage_options=runs.s3)
    error = failure(dcp.save, step(1), storage_writer=nowhere)
    assert isinstance(error, FileNotFoundError)
    assert "there is no such bucket" in str(error)
    with pytest.raises(StoreError, match=r"missing\.zarr: not a model"):
        runs.load("missing.zarr", step(1))
    error = failure(runs.load, "missing", step(1))
    assert "missing: not a model" in str(error)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(PermissionError, match="no credentials are known"):
        writer(runs.at("c.zarr"))


Job = Callable[..., None]


@pytest.fixture
def job(tmp_path: Path, runs: Runs, needs_jobs: None) -> Job:
    """Return a function that runs jobs with the bucket."""
    (tmp_path / "bucket.json").write_text(json.dumps({"address": runs.address, "options": runs.s3}))
    return partial(run_jobs, tmp_path)


def test_jobs(runs: Runs, job: Job) -> None:
    job(
        f"save_to_bucket:{by_tier(2, 4)}:c.zarr:0",
        f"load_from_bucket:{by_tier(1, 3)}:c.zarr:0",
    )
    assert runs.names() == ["c.zarr"]
    verify_store(runs.at("c.zarr"), storage_options=runs.s3)


@pytest.mark.slow
def test_jobs_with_shared_chunks_and_series(runs: Runs, job: Job) -> None:
    job("save_shared_to_bucket:4:c.zarr:0", "load_from_bucket:3:c.zarr:0")
    job("save_asynchronously_to_bucket:2:d.zarr:0", "load_from_bucket:1:d.zarr:0")
    assert not [key for key in runs.stored_keys() if "scratch" in key]
    job("save_series_to_bucket:3", "load_from_bucket:2:step-3.zarr:3")
    assert runs.names() == ["c.zarr", "d.zarr", "step-2.zarr", "step-3.zarr"]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 3])
def test_a_process_of_a_job_is_killed_at_a_request(runs: Runs, job: Job, victim: int) -> None:
    job("save_to_bucket:4:c.zarr:0")
    before = runs.stored_keys()
    for number in (2, -9, 20) if victim else (3, -8, -30):
        status = KILLED
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                job(f"die_at_request:4:c.zarr:1:{victim}:{number}", status=status)
            except AssertionError:
                job("load_from_bucket:1:c.zarr:1")  # it had fewer requests
                break
        job("load_from_bucket:2:c.zarr:0")
    job("die_at_request:4:c.zarr:0:0:9999", "load_from_bucket:1:c.zarr:0")
    job("die_at_request:4:c.zarr:0:0:9999", "load_from_bucket:1:c.zarr:0")
    assert len(runs.stored_keys()) == len(before)
