"""Fixtures for every test: real NATS and Valkey servers, one of each per test module."""

import asyncio
import functools
import gc
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import httpx._transports.default as http_transports
import pytest

from omnibus.process.tuning import die_with_parent
from omnibus.up import infra
from omnibus.up.infra import InfraServer
from tests import by_night, checkpoint_cache, measured, parts, slow
from tests.e2e import docker_engine as docker

# Threads of OpenMP spin while they wait for each other: on a machine that other tests keep busy they make a model ten times
# slower, here and in every process that a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests run in a separate session, so executors with a lower priority would get only idle CPU time.
os.environ.setdefault("OMNIBUS_EXECUTOR_NICE", "0")

# The readline that pytest imports sets them for workers, which have no terminal. Output would be as narrow as one.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# Every client would load the trusted certificates again, 60 ms of CPU; tests connect to local servers only.
http_transports.create_ssl_context = functools.cache(http_transports.create_ssl_context)

# A shell starts background jobs with SIGINT ignored. Their children inherit this, so Ctrl-C would have no effect.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
_STOP_WITHIN = 10.0  # seconds
#: Marks of tests that run one after another: Chromium aborts loading (``net::ERR_NETWORK_CHANGED``) whenever an
#: interface of the machine is added or removed, as with each container and each network namespace.
_NETWORKED = ("browser", "docker", "netns")
_NAMED_BYTES = 40
"""Longer bytes of a parameter are named by their length: encoded media hold random serial numbers."""


@contextmanager
def run_infra_server(server: InfraServer) -> Iterator["subprocess.Popen[bytes]"]:
    """Run ``server`` until the block ends; print its output if the start fails."""
    assert server.spec.cwd is not None
    log = server.spec.cwd / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            server.spec.argv, stdout=output, stderr=subprocess.STDOUT, preexec_fn=die_with_parent()
        )
    try:
        _wait_ready(server, process, log)
        yield process
    finally:
        process.send_signal(signal.SIGCONT)  # a test may have stopped it
        process.terminate()
        process.wait(_STOP_WITHIN)


def _wait_ready(server: InfraServer, process: "subprocess.Popen[bytes]", log: Path) -> None:
    assert server.spec.ready is not None
    try:
        asyncio.run(asyncio.wait_for(server.spec.ready(), server.spec.ready_within))
    except TimeoutError:
        pytest.fail(f"{server.spec.name} not ready (exit {process.poll()}):\n{log.read_text()}", pytrace=False)


@pytest.fixture(scope="session")
def run_server() -> Callable[[InfraServer], AbstractContextManager["subprocess.Popen[bytes]"]]:
    """A context manager that runs a separate ``omnibus.up.infra.InfraServer``.

    The test may stop or kill it.
    """
    return run_infra_server


@pytest.fixture(scope="module")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a NATS server with JetStream, shared within one module."""
    server = infra.prepare_nats(tmp_path_factory.mktemp("nats"))
    with run_infra_server(server):
        yield server.url


@pytest.fixture(scope="module")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a Valkey server, shared by the tests of one module."""
    server = infra.prepare_valkey(tmp_path_factory.mktemp("valkey"))
    with run_infra_server(server):
        yield server.url


@pytest.fixture(scope="session", autouse=True)
def checkpoints_built_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Build each tiny checkpoint once, in the first test that needs it.

    Later tests get copies.
    """
    with checkpoint_cache.cache_builds(checkpoint_cache.directory_of_run(tmp_path_factory) / "checkpoints"):
        yield


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[docker.DockerEngine]:
    """A running Docker engine with the Python base image; without one, tests skip."""
    with ExitStack() as stack:
        try:
            engine = stack.enter_context(docker.start_engine())
            docker.ensure_image(engine)
        except docker.NoEngine as reason:
            pytest.skip(f"no Docker: {reason}")
        yield engine


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Pause the garbage collector during the creation of millions of permanent objects."""
    if isinstance(collector, pytest.Session):
        gc.disable()


def pytest_collection_finish() -> None:
    """Restrict garbage collection to objects that tests create from now on."""
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", type=parts.parse_part, metavar="N/COUNT", help="run one of COUNT parts of the tests")


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in its own
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group tests that share a running system into one worker, longest first."""
    by_night.mark_items(config, items)
    slow.mark_items(items)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group_name(item)))
    with_slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: _rank_test(item, item.path in with_slow))


@pytest.hookimpl(specname="pytest_collection_modifyitems", trylast=True)
def pytest_select_part(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select a part of the tests that ``-m`` and ``-k`` leave."""
    parts.select_part(config, items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print measurements of tests, including those of workers, whose output is hidden."""
    if lines := measured.find_measured(terminalreporter.stats):
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name long bytes by length, so all workers collect the same names."""
    return f"{len(val)}-bytes" if isinstance(val, bytes) and len(val) > _NAMED_BYTES else None


def _group_name(item: pytest.Item) -> str:
    """Return the group of a test, which runs in one worker.

    A file can name its group. Tests that read or change the machine's network are one group, and so are those that run
    vLLM in systems. Others are grouped by directory or file.
    """
    if (marker := item.get_closest_marker("xdist_group")) is not None:
        return str(marker.args[0])
    if any(item.get_closest_marker(name) is not None for name in _NETWORKED):
        return "network"
    if all(item.get_closest_marker(name) is not None for name in ("vllm", "e2e")):
        return "systems with vLLM"  # each takes most of the memory of a small machine
    directory = item.path.parent
    is_shared = "e2e" in directory.parts and directory.name not in ("e2e", "families")
    is_shared = is_shared and (directory / "conftest.py").exists()
    return str((directory if is_shared else item.path).relative_to(TESTS))


def _rank_test(item: pytest.Item, has_slow: bool) -> int:
    """Order the longest groups first, so none starts late on one worker.

    ``has_slow``: its file has slow tests.
    """
    marks = ("docker", "chaos", "e2e", "netns")
    usual = len(marks) + (not has_slow)
    return next((rank for rank, mark in enumerate(marks) if item.get_closest_marker(mark)), usual)
