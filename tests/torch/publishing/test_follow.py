"""`follow` yields the steps of a published run as they appear, each of them complete."""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import bf16codecs
from bf16codecs.convert import safetensors_to_zarr
from bf16codecs.errors import BaseMismatchError, ServerError, StoreError
from bf16codecs.model import following
from bf16codecs.store.published import packs
from models import every_dtype
from object_store import Faults
from published import bits_in, bits_of, copies, first_state, published, states
from servers import serving

torch = pytest.importorskip("torch")
package = pytest.importorskip("bf16codecs.torch")
follow, publish, load_into = package.follow, package.publish, package.load_into


def taken(found: Iterator[Any], count: int) -> list[Any]:
    return list(itertools.islice(found, count))


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return what sets how many seconds a follower waits for what is missing."""
    return partial(monkeypatch.setattr, following, "_PATIENCE")


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[None]:
    """Do something in another thread."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_each_step_is_yielded_as_it_appears(tmp_path: Path) -> None:
    path, some = tmp_path / "policy.zarr", states(8)
    tensors = copies(some[0])
    steps = published(path, some, keyframe_every=3)
    next(steps)
    with beside(lambda: [time.sleep(0.05) for _ in steps]):
        have = None
        for model in follow(path, timeout=20):
            model.update(tensors, have=have)
            have = model.step
            assert bits_in(model) == bits_of(some[have // 10])
            assert bits_of(tensors)["embed.weight"] == bits_of(some[have // 10])["embed.weight"]
            if have == 70:
                break


def test_a_follower_may_be_there_before_the_run(tmp_path: Path) -> None:
    path = tmp_path / "policy.zarr"

    def begin() -> None:
        time.sleep(0.3)
        publish(path, first_state(), 5)

    with beside(begin), pytest.warns(UserWarning, match="no published run is there yet: waiting"):
        assert next(follow(path, timeout=20)).step == 5


def test_the_newest_step_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "policy.zarr"
    list(published(path, states(6)))
    assert [model.step for model in taken(follow(path), 1)] == [50]
    assert [model.step for model in taken(follow(path, have=20), 3)] == [30, 40, 50]
    assert [model.step for model in taken(follow(path, have=20, latest=True), 1)] == [50]
    assert [model.step for model in taken(follow(path, have=25), 1)] == [50]


def test_without_a_new_step_it_gives_up(tmp_path: Path) -> None:
    path = tmp_path / "policy.zarr"
    list(published(path, states(2)))
    found = follow(path, timeout=0.2)
    assert next(found).step == 10
    with pytest.raises(TimeoutError, match=r"no new step for 0\.2 s"):
        next(found)


def test_why_it_gives_up_is_told() -> None:
    found = follow("http://127.0.0.1:1/policy.zarr", timeout=0.2)
    with pytest.raises(TimeoutError, match=r"no new step for 0\.2 s: .*127\.0\.0\.1"):
        next(found)


def test_one_that_missed_fifty_steps_reads_their_changes(tmp_path: Path) -> None:
    path, some = tmp_path / "policy.zarr", states(52)
    list(published(path, some, keyframe_every=16))
    for whole in path.glob("steps/*/whole.*"):
        whole.unlink()
    tensors = copies(some[1])
    (model,) = taken(follow(path, have=10, latest=True), 1)
    assert model.step == 510
    model.update(tensors, have=10)
    assert bits_of(tensors)["half"] == bits_of(some[51])["half"]


def test_steps_may_be_dropped_while_it_follows(tmp_path: Path) -> None:
    path, some = tmp_path / "policy.zarr", states(12)
    steps = published(path, some, keyframe_every=3, keep_last=1)
    next(steps)
    found = follow(path, timeout=20)
    assert next(found).step == 0
    taken(steps, 2)
    assert next(found).step == 10  # 20 is there
    taken(steps, 4)  # and 0 to 50 are dropped
    model = next(found)
    assert model.step == 60
    tensors = copies(some[1])
    model.update(tensors, have=10)
    assert bits_of(tensors)["half"] == bits_of(some[6])["half"]
    list(steps)
    with pytest.raises((StoreError, OSError), match="steps/60-"):
        bits_in(model)  # it was dropped
    assert bits_in(next(found)) == bits_of(some[11])


def test_another_base_is_refused_and_can_be_replaced_as_a_whole(tmp_path: Path) -> None:
    path, some = tmp_path / "policy.zarr", states(3)
    list(published(path, some))
    (model,) = taken(follow(path, have=10), 1)
    tensors = copies(first_state(seed=7))
    before = bits_of(tensors)
    with pytest.raises(BaseMismatchError):
        model.update(tensors, have=10)
    assert bits_of(tensors) == before
    model.update(tensors)
    assert bits_of(tensors)["half"] == bits_of(some[2])["half"]


def test_a_module_is_loaded_from_the_model_that_is_yielded(tmp_path: Path) -> None:
    path = tmp_path / "policy.zarr"
    torch.manual_seed(0)
    trained, served = (torch.nn.Linear(64, 64).bfloat16() for _ in range(2))
    have = None
    for step in range(4):
        publish(path, trained.state_dict(), step)
        (model,) = taken(follow(path, have), 1)
        load_into(served, model, have=have)
        have = model.step
        assert bits_of(served.state_dict()) == bits_of(trained.state_dict())
        with torch.no_grad():
            trained.weight[step] += 1
    assert list(model)  # it stays open


def test_other_things_cannot_be_followed(tmp_path: Path) -> None:
    safetensors_to_zarr(every_dtype(tmp_path / "model.safetensors"), tmp_path / "model.zarr")
    with pytest.raises(StoreError, match=r"only runs that bf16codecs\.torch\.publish writes"):
        next(follow(tmp_path / "model.zarr"))
    with pytest.raises(StoreError, match="on a hub"):
        next(follow("hf://owner/name"))
    with pytest.raises(ValueError, match="storage_options are for addresses"):
        next(follow(tmp_path / "policy.zarr", storage_options={"key": "k"}))
    publish(tmp_path / "policy.zarr", first_state(), 4)
    with pytest.raises(ValueError, match=r"names a step: follow .*policy\.zarr, with have=4"):
        follow(tmp_path / "policy.zarr@4")
    for folder in (tmp_path, tmp_path / "policy.zarr" / "steps"):
        with pytest.raises(StoreError, match="a folder with no published run"):
            next(follow(folder))


@pytest.mark.parametrize(
    "arguments",
    [{"have": "600"}, {"have": 1.0}, {"have": -1}, {"timeout": "x"}, {"timeout": True}]
    + [{"timeout": value} for value in (-1, float("nan"), -float("inf"))],
)
def test_invalid_arguments_are_refused(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{next(iter(arguments))} must"):
        follow(tmp_path / "policy.zarr", **arguments)


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_run_that_begins_anew_is_followed(tmp_path: Path, is_removed: bool) -> None:
    path, some, others = tmp_path / "policy.zarr", states(3), states(3, seed=9)
    others = [{n: t for n, t in state.items() if n != "mask"} for state in others]
    list(published(path, some))
    found = follow(path, timeout=5)
    model = next(found)
    assert model.step == 20
    if is_removed:
        shutil.rmtree(path)
    publish(path, others[0], 10, restart=True)
    publish(path, others[1], 20)
    tensors = {name: tensor for name, tensor in copies(some[2]).items() if name != "mask"}
    new = next(found)
    assert new.step == 20
    new.update(tensors, have=model)  # which is another step 20
    assert bits_of(tensors)["half"] == bits_of(others[1])["half"]
    publish(path, others[2], 30)
    model, new = new, next(found)
    new.update(tensors, have=model)
    assert bits_of(tensors)["half"] == bits_of(others[2])["half"]


def test_other_objects_in_a_bucket_cannot_be_followed(bucket: str, s3: dict[str, str]) -> None:
    from bf16codecs.store.remote.object_folder import ObjectFolder

    ObjectFolder(f"{bucket}/mine", s3).create("notes.txt", b"mine")
    with pytest.raises(StoreError, match="a folder with no published run"):
        next(follow(f"{bucket}/mine", storage_options=s3))


def test_in_a_bucket_an_unchanged_root_is_not_sent_again(
    bucket: str, s3: dict[str, str], s3_faults: Faults
) -> None:
    path, some = f"{bucket}/policy.zarr", states(4)
    steps = published(path, some, keyframe_every=2, storage_options=s3)
    next(steps)
    found = follow(path, timeout=20, storage_options=s3)
    tensors = copies(some[0])
    model = next(found)
    model.update(tensors)
    for number, _ in enumerate(steps, 1):
        s3_faults.clear()
        model = next(found)
        model.update(tensors, have=10 * number - 10)
        assert bits_of(tensors)["half"] == bits_of(some[number])["half"]
        keys = [path.rpartition("/")[2] for _, path in s3_faults.requests]
        # One for the root, and one for all that has changed.
        assert sorted(keys) == ["change.0.0", "zarr.json"]
        assert len(found._packed.packs._kept) == 1  # nothing of earlier steps stays in memory


def test_web_servers_are_asked_for_what_has_changed(tmp_path: Path) -> None:
    path, some = tmp_path / "policy.zarr", states(3)
    steps = published(path, some)
    next(steps)
    with serving(tmp_path) as server:
        server.has_etags = True
        headers: list[Any] = []
        server.note_headers = lambda given: headers.append(given.get("If-None-Match"))
        found = follow(f"{server.url}/policy.zarr", timeout=20)
        assert bits_in(next(found)) == bits_of(some[0])
        headers.clear()
        server.clear()
        with beside(lambda: [time.sleep(0.2), next(steps)]):
            model = next(found)
        assert all(headers[:2])
        assert server.sent.count(0) > 1  # nothing is sent of an unchanged root
        assert bits_in(model) == bits_of(some[1])


def test_a_server_that_lags_is_waited_for(
    tmp_path: Path, patience: Callable[[float], None]
) -> None:
    path, some = tmp_path / "policy.zarr", states(3)
    steps = published(path, some)
    taken(steps, 1)
    shutil.copytree(path, tmp_path / "shown.zarr")
    with serving(tmp_path) as server:
        found = follow(f"{server.url}/shown.zarr", timeout=20)
        assert next(found).step == 0
        taken(steps, 2)
        (change,) = path.glob("steps/10-*/change.0.0")
        shown = tmp_path / "shown.zarr" / change.relative_to(path)
        shutil.copy(path / "zarr.json", tmp_path / "shown.zarr" / "zarr.json")

        def appear() -> None:
            time.sleep(0.1)
            shown.parent.mkdir()
            shutil.copy(change, shown)

        with beside(appear):
            model = next(found)
        assert bits_in(model) == bits_of(some[1])
        patience(0.1)
        with pytest.raises(StoreError, match="steps/20-"):
            next(found)  # for good


@pytest.mark.parametrize(("lacking", "before"), [("plan/*", []), ("steps/30-*/change*", [20])])
@pytest.mark.parametrize("is_cut", [False, True])
def test_files_that_come_after_the_root_are_waited_for(
    tmp_path: Path,
    patience: Callable[[float], None],
    lacking: str,
    before: list[int],
    is_cut: bool,
) -> None:
    path, some = tmp_path / "policy.zarr", states(4)
    list(published(path, some, keyframe_every=2))
    (file,) = path.glob(lacking)
    content = file.read_bytes()
    file.write_bytes(content[:-9]) if is_cut else file.unlink()
    found = follow(path, timeout=20)
    assert [next(found).step for _ in before] == before
    patience(0.1)
    with pytest.raises(StoreError, match=file.parent.name) as caught:
        next(found)
    assert type(caught.value) is StoreError
    patience(20)
    with beside(lambda: [time.sleep(0.1), file.write_bytes(content)]):
        assert bits_in(next(found)) == bits_of(some[3])


def test_where_files_lag_the_newest_step_that_is_there_comes_first(tmp_path: Path) -> None:
    path, shown, some = tmp_path / "policy.zarr", tmp_path / "shown.zarr", states(9)
    for number, _ in enumerate(published(path, some, keyframe_every=3)):
        if number:
            shutil.copyfile(path / "zarr.json", shown / "zarr.json")
            model = next(follow(shown, timeout=20))
            assert model.step == 10 * number - 10
            assert bits_in(model) == bits_of(some[number - 1])
            for least in (model.step, model.step + 1):
                with pytest.raises(TimeoutError):
                    next(follow(shown, have=least, timeout=0.05))
        shutil.copytree(path, shown, dirs_exist_ok=True)
    next((shown / "steps").glob("80-*/change*")).unlink()
    with pytest.raises(TimeoutError, match="no step 80"):
        follow(shown).wait_for(80, 0.05)


def test_a_step_whose_differences_are_lost_does_not_stop_a_follower(
    tmp_path: Path, patience: Callable[[float], None]
) -> None:
    path, some = tmp_path / "policy.zarr", states(8)
    steps = published(path, some, keyframe_every=4)
    taken(steps, 4)
    found, new = follow(path, have=10), follow(path)
    next(path.glob("steps/20-*/change*")).unlink()
    assert next(new).step == 10
    patience(0.1)
    for each in (found, new):
        with pytest.raises(StoreError, match="steps/20-"):
            next(each)
    list(steps)
    for each in (found, new):
        model = next(each)
        assert model.step == 70
        assert bits_in(model) == bits_of(some[7])
    assert next(follow(path, have=10, latest=True)).step == 70


def test_a_pack_that_a_server_has_not_all_of_is_waited_for(
    tmp_path: Path, patience: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, some = tmp_path / "policy.zarr", states(4)
    list(published(path, some, keyframe_every=2))
    monkeypatch.setattr(packs, "_FIRST_BYTES", 200)
    patience(0.1)
    for kind, have in (("change", 20), ("whole", None)):
        (file,) = path.glob(f"steps/{30 if have else 20}-*/{kind}*")
        content = file.read_bytes()
        file.write_bytes(content[: len(content) * 2 // 3])
        with serving(tmp_path) as server:
            found = follow(f"{server.url}/policy.zarr", have=have)
            if have is None:
                assert next(found).step == 10
            else:
                with pytest.raises((StoreError, OSError), match="steps/30-"):
                    next(found)
        file.write_bytes(content)


def test_a_server_without_ranges_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.zarr"
    monkeypatch.setattr(packs, "_FIRST_BYTES", 20)
    list(published(path, states(2)))
    with serving(tmp_path) as server:
        server.ignore_ranges = True
        with pytest.raises(ServerError, match="ignores ranges"):
            next(follow(f"{server.url}/policy.zarr"))


@pytest.mark.parametrize("content", [b"", b'{"attributes": {"bf16', b"[]"])
def test_a_root_that_is_not_all_there_is_waited_for(
    tmp_path: Path, patience: Callable[[float], None], content: bytes
) -> None:
    path, some = tmp_path / "policy.zarr", states(2)
    list(published(path, some))
    root = (path / "zarr.json").read_bytes()
    found = follow(path, timeout=20)
    assert next(found).step == 10
    (path / "zarr.json").write_bytes(content)
    patience(0.1)
    with pytest.raises(StoreError, match=r"zarr\.json is invalid"):
        next(found)
    patience(20)

    def go_on() -> None:
        time.sleep(0.1)
        (path / "zarr.json").write_bytes(root)
        publish(path, states(3)[2], 20)

    with beside(go_on):
        assert next(found).step == 20


def test_a_new_follower_waits_for_a_root_that_lags(
    tmp_path: Path, patience: Callable[[float], None]
) -> None:
    path, some = tmp_path / "policy.zarr", states(4)
    steps = published(path, some)
    taken(steps, 2)
    found = follow(path, have=20, timeout=20)
    with beside(lambda: [time.sleep(0.05), *steps]):
        assert next(found).step == 30
    with pytest.raises(TimeoutError):
        next(follow(path, have=50, timeout=0.1))
    # A job may have gone back: after a while, what is there is the next one.
    patience(0.1)
    assert next(follow(path, have=50, timeout=20)).step == 30


def test_a_run_that_is_removed_is_not_waited_for_forever(
    tmp_path: Path, patience: Callable[[float], None]
) -> None:
    path = tmp_path / "policy.zarr"
    publish(path, first_state(), 1)
    found = follow(path)
    assert next(found).step == 1
    shutil.rmtree(path)
    patience(0.1)
    with pytest.raises(StoreError, match="the run is no longer there"):
        next(found)
    publish(path, first_state(), 0)
    assert next(found).step == 0


def test_a_copy_of_the_run_may_take_its_place(
    tmp_path: Path, patience: Callable[[float], None]
) -> None:
    path, some = tmp_path / "policy.zarr", states(4)
    steps = published(path, some)
    taken(steps, 2)
    found, tensors = follow(path, timeout=20), copies(some[1])
    model = next(found)
    shutil.copytree(path, tmp_path / "copy.zarr")
    path.rename(tmp_path / "old.zarr")
    (tmp_path / "copy.zarr").rename(path)
    for number, _ in enumerate(steps, 2):
        before, model = model, next(found)
        model.update(tensors, have=before)
        assert bits_of(tensors)["half"] == bits_of(some[number])["half"]


def test_a_copy_that_has_begun_is_waited_for(tmp_path: Path) -> None:
    path, some = tmp_path / "policy.zarr", states(2)
    list(published(path, some))
    (path / "zarr.json").rename(path / "zarr.json.6eF2b0A1")
    (path / ".zarr.json.AbC").write_text("{")
    found = follow(path, timeout=20)
    with (
        pytest.warns(UserWarning, match="waiting for it"),
        beside(lambda: [time.sleep(0.1), (path / "zarr.json.6eF2b0A1").rename(path / "zarr.json")]),
    ):
        assert next(found).step == 10


def test_other_threads_may_read_earlier_steps(tmp_path: Path) -> None:
    path, some = tmp_path / "policy.zarr", states(30)
    found = follow(path, timeout=20)
    steps = published(path, some, keyframe_every=2)
    with ThreadPoolExecutor(4) as threads:
        reading = [threads.submit(bits_in, next(found)) for _ in steps]
    assert [future.result() for future in reading] == [bits_of(state) for state in some]


def test_a_follower_takes_no_more_steps_than_it_needs(tmp_path: Path) -> None:
    path, some = tmp_path / "policy.zarr", states(80)
    list(published(path, some, keyframe_every=4))
    found = follow(path, have=770)
    tensors = copies(some[77])
    for number in (780, 790):
        model = next(found)
        assert len(model._handle.opened.run.numbers) < 70
        model.update(tensors, have=number - 10)
        assert bits_of(tensors)["half"] == bits_of(some[number // 10])["half"]
        assert bits_in(model) == bits_of(some[number // 10])
    assert found.wait_for(30).step == 30


def test_a_server_that_fails_for_a_while_is_asked_again(tmp_path: Path) -> None:
    path, some = tmp_path / "policy.zarr", states(2)
    list(published(path, some))
    with serving(tmp_path) as server:
        found = follow(f"{server.url}/policy.zarr", have=0, timeout=20)
        server.failures = 2
        assert bits_in(next(found)) == bits_of(some[1])


def test_a_server_that_fails_while_a_step_is_read_is_asked_again(tmp_path: Path) -> None:
    path, some = tmp_path / "policy.zarr", states(3)
    list(published(path, some))
    with serving(tmp_path) as server, follow(f"{server.url}/policy.zarr", timeout=20) as found:
        model = next(found)
        server.failures = 2
        assert bits_in(model) == bits_of(some[2])
        with bf16codecs.open_model(f"{server.url}/policy.zarr@20") as model:
            tensors = copies(some[0])
            server.failures = 2
            model.update(tensors, have=0)
        assert bits_of(tensors)["half"] == bits_of(some[2])["half"]


def test_it_can_be_asked_again_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "policy.zarr"
    found = follow(path, timeout=0.1)
    with pytest.warns(UserWarning, match="waiting for it") as warned, pytest.raises(TimeoutError):
        next(found)
    assert warned[0].filename == __file__
    publish(path, first_state(), 3)
    assert next(found).step == 3


def test_a_step_that_is_closed_tells_what_the_caller_has(tmp_path: Path) -> None:
    path, some = tmp_path / "policy.zarr", states(2)
    steps = published(path, some)
    next(steps)
    found, tensors = follow(path, timeout=5), copies(some[0])
    before = next(found)
    before.close()
    next(steps)
    new = next(found)
    for whole in path.glob("steps/*/whole.*"):
        whole.unlink()
    new.update(tensors, have=before)
    assert before.step == 0
    assert bits_of(tensors)["half"] == bits_of(some[1])["half"]


def test_a_file_and_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match="a file, and no published run"):
        next(follow(tmp_path / "file"))
    publish(tmp_path / "policy.zarr", first_state(), 1)
    monkeypatch.chdir(tmp_path)
    found = follow("policy.zarr", timeout=5)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert next(found).step == 1


def test_a_follower_keeps_no_indexes_of_dropped_steps(tmp_path: Path) -> None:
    path, some = tmp_path / "policy.zarr", states(12)
    found, tensors, before = follow(path, timeout=5), copies(some[0]), None
    for number, _ in enumerate(published(path, some, keyframe_every=2, keep_last=2)):
        model = next(found)
        model.update(tensors, have=before)
        before = model
        assert bits_of(tensors)["half"] == bits_of(some[number])["half"]
    assert len(found._packed.packs._extents) <= 6
