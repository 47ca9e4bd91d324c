"""Fixtures that several test files share."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import bf16codecs
import tiers
from checkout import ROOT, package_environment
from hub_server import Hub, hub_server
from object_store import CREDENTIALS, Faults, s3_server
from tier_dependence import depends_on_tier

# Asserts outside test files show the compared values as well.
HELPERS = {path.stem for path in (ROOT / "tests/support").glob("*.py")}
pytest.register_assert_rewrite(*sorted(HELPERS - sys.modules.keys()))

#: The marker of the tests that only the full tier runs; addopts deselect it.
QUICK = "not slow"
#: Each process collects all tests, which takes seconds.
MOST_WORKERS = 16
LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("bf16codecs")
    group.addoption("--all", action="store_true", help="run the full tier: the slow tests, too")
    group.addoption(
        "--rest",
        action="store_true",
        help="run what a quick run leaves out: the slow tests, and those that depend on the tier or"
        " the seed",
    )
    group.addoption(
        "--shares",
        type=int,
        default=1,
        metavar="N",
        help="run one of N shares of the tests, which the seed chooses (default: 1)",
    )
    group.addoption("--seed", type=int, default=0, help="seed of all random choices (default: 0)")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if (config.option.all or config.option.rest) and config.option.markexpr == QUICK:
        config.option.markexpr = ""
    tiers.SEED = config.option.seed
    tiers.IS_FULL = QUICK not in config.option.markexpr
    # Shared machines stall now and then: with a deadline, tests would fail without a bug. The seed
    # alone decides which examples are tried, not what an earlier run has found.
    settings.register_profile(
        "tests",
        deadline=None,
        database=None,
        max_examples=tiers.by_tier(25, 100),
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    settings.load_profile("tests")
    config.option.hypothesis_seed = str(tiers.SEED)
    # All servers of tests are on 127.0.0.1: a proxy could not reach them.
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[name]
    config.stash[LEFT_OUT] = 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    # One more than there are cores: tests wait for disks and for child processes.
    return min((os.cpu_count() or 1) + 1, MOST_WORKERS)


def pytest_report_header(config: pytest.Config) -> str:
    return f"tier: {tiers.by_tier('quick', 'full')}, seed: {tiers.SEED}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.rest:
        items[:] = [item for item in items if is_left_out(item)]
    if (shares := config.option.shares) > 1:
        mine = tiers.SEED % shares
        items[:] = [i for i in items if zlib.crc32(i.nodeid.encode()) % shares == mine]


def is_left_out(item: pytest.Item) -> bool:
    """Tell whether the quick tier leaves out a test, or does less of it."""
    name = getattr(item, "originalname", item.name)
    return item.get_closest_marker("slow") is not None or depends_on_tier(item.path, name)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    # With -k, the user chose the tests: a count of slow ones would mislead.
    option = items[0].config.option
    if option.markexpr == QUICK and not option.keyword:
        slow = [item for item in items if item.get_closest_marker("slow")]
        items[0].config.stash[LEFT_OUT] += len(slow)


def pytest_sessionfinish(session: pytest.Session) -> None:
    # A worker of pytest-xdist tells the process that reports.
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    left_out = getattr(node, "workeroutput", {}).get("left_out", 0)
    # Each worker collects the same tests.
    node.config.stash[LEFT_OUT] = max(node.config.stash[LEFT_OUT], left_out)


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Iterator[None]:
    yield
    if left_out := config.stash[LEFT_OUT]:
        terminalreporter.write_line(
            f"Left out: {left_out} slow tests, and some examples of others. Run all: pytest --all"
        )


RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the root of the source tree."""
    return ROOT


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """Return the model of the demo: half a million trained BF16 weights, step 400 of a run."""
    return Path(bf16codecs.__file__).parent / "data" / "demo.safetensors"


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Return a function that runs Python code in a child process, away from the source tree."""

    def run(
        code: str, *args: str, check: bool = True, timeout: float = 120, **env: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", code, *args],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=package_environment(**env),
            timeout=timeout,
        )
        if check:
            assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def aiohttp() -> Any:
    """Skip what needs it to read from servers."""
    return pytest.importorskip("aiohttp")


@pytest.fixture
def hub(tmp_path: Path, aiohttp: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Run a hub that repeats of requests do not wait for."""
    pytest.importorskip("huggingface_hub")
    from bf16codecs.store.remote import retries

    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(retries, "_WAITS", (0, 0, 0, 0))
    (tmp_path / "hub").mkdir()
    with hub_server(tmp_path / "hub") as running:
        yield running


@pytest.fixture(scope="session")
def fsspec() -> Any:
    return pytest.importorskip("fsspec")


@pytest.fixture(scope="session")
def _s3_and_faults() -> Iterator[tuple[dict[str, str], Faults]]:
    pytest.importorskip("s3fs")
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("moto.server")
    with s3_server() as (address, faults):
        options = {**CREDENTIALS, "endpoint_url": address}
        fsspec.filesystem("s3", **options).mkdir("bucket")
        yield options, faults


@pytest.fixture(scope="session")
def s3(_s3_and_faults: tuple[dict[str, str], Faults]) -> dict[str, str]:
    """Return the options for a client of an S3 server that has a bucket; there is one server."""
    return _s3_and_faults[0]


@pytest.fixture
def s3_faults(_s3_and_faults: tuple[dict[str, str], Faults]) -> Iterator[Faults]:
    """Return what goes wrong with the server, at first nothing."""
    _, faults = _s3_and_faults
    faults.clear()
    yield faults
    faults.clear()


@pytest.fixture
def bucket(s3: dict[str, str], tmp_path: Path, fsspec: Any) -> Iterator[str]:
    """Return the address of an empty folder in a bucket."""
    address = f"s3://bucket/{tmp_path.name}"
    yield address
    fs = fsspec.filesystem("s3", **s3)
    if fs.exists(address):
        fs.rm(address, recursive=True)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let writers of object stores count as dead after half a second; see that leases end."""
    lease = pytest.importorskip("bf16codecs.store.remote.lease")
    monkeypatch.setattr(lease, "_RENEW_SECONDS", 0.1)
    monkeypatch.setattr(lease, "_FRESH_SECONDS", 0.3)
    monkeypatch.setattr(lease, "DEAD_SECONDS", 0.5)
    monkeypatch.setattr(lease, "_LOOK_SECONDS", 0.1)
    yield
    assert not [thread for thread in threading.enumerate() if "lease" in thread.name]
