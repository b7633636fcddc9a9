"""The whole system without a model: several gateways, their token, and a plan without executors."""

import asyncio
import contextlib
import socket
import stat
from argparse import Namespace
from pathlib import Path

import httpx
import psutil
import pytest

from omnibus.cli.gateway import Gateway, find_gateway
from omnibus.errors import BadRequest, Conflict, StageUnavailable
from omnibus.up import runs
from omnibus.up import runs as run_dir
from omnibus.up.stack import Stack
from tests import certificates
from tests.e2e import warm
from tests.unit.up.programs import Lines, all_gone, log_to

SERVICES = ("gateway", "planner", "sidecar")
NOTHING = '{"models": {}}'


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A private directory for the file with all addresses."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def read_variables(process: int) -> dict[str, str]:
    return psutil.Process(process).environ()


async def test_a_system_without_models_is_ready_at_every_gateway_and_leaves_nothing(tmp_path: Path):
    lines = Lines()
    async with Stack(NOTHING, gateways=2, apps_dir=tmp_path, fork_executors=False, log=log_to(lines)) as stack:
        state, pids = runs.read_state(), stack.supervisor.pids
        arguments = [psutil.Process(pid).cmdline() for pid in pids.values()]
        async with httpx.AsyncClient() as http:
            answers = [await http.get(f"{url}/readyz") for url in stack.urls]
        gateways = [read_variables(pids[name]) for name in ("gateway", "gateway-1")]
        service_variables = [read_variables(pids[name]) for name in ("planner", "sidecar")]

    assert [answer.json()["ready"] for answer in answers] == [True, True]
    assert set(pids) == {"nats", "valkey", "service-fork-server", "planner", "sidecar", "gateway", "gateway-1"}
    assert set(state.pids) == set(pids)
    assert state.pids == pids
    assert stack.urls == [f"http://127.0.0.1:{state.ports[name]}" for name in ("gateway", "gateway-1")]
    assert len({*stack.urls, state.nats_url, state.store_url, state.monitor_url}) == 5
    assert (state.gateway_url, state.apps_dir) == (stack.url, str(tmp_path))
    assert len(state.admin_token) >= 32
    assert {one["OMNIBUS_GATEWAY_ADMIN_TOKEN"] for one in gateways} == {state.admin_token}
    assert {one["OMNIBUS_GATEWAY_APPS_DIR"] for one in gateways} == {str(tmp_path)}
    assert not any("OMNIBUS_GATEWAY_ADMIN_TOKEN" in one for one in service_variables)
    assert {one["OMNIBUS_SERVICE_METRICS_DIR"] for one in [*gateways, *service_variables]} == {
        f"{state.directory}/metrics"
    }
    words = [url.partition("@")[0].rpartition(":")[2] for url in (state.nats_url, state.store_url)]
    assert all(len(word) >= 32 and word not in f"{arguments}{lines.getvalue()}" for word in words)
    assert all_gone([*pids.values(), *state.pids.values()])


async def test_a_relative_directory_of_metrics_is_below_that_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMNIBUS_SERVICE_METRICS_DIR", "targets/mine")
    warm_stack = warm.warm_stack_class(warm.fork_server_socket())

    async with warm_stack(NOTHING, apps_dir=tmp_path, fork_executors=False, log=log_to(Lines())):
        files = {path.name.partition("-")[0] for path in (tmp_path / "targets" / "mine").iterdir()}

    assert files == set(SERVICES)


async def test_services_are_born_by_their_fork_server_and_come_back_without_it(tmp_path: Path):
    warm_stack = warm.warm_stack_class(warm.fork_server_socket())
    async with warm_stack(NOTHING, apps_dir=tmp_path, fork_executors=False, log=log_to(Lines())) as stack:
        bearer = psutil.Process(stack.pids["service-fork-server"])
        processes = [psutil.Process(stack.pids[name]) for name in SERVICES]
        bearers = {one.parent() for one in processes}
        names = {next(word for word in one.cmdline() if word.startswith("omnibus_")) for one in processes}

        processes[0].kill()
        second = await other_gateway(stack, but=processes[:1])
        bearer.kill()
        second.kill()
        third = await other_gateway(stack, but=[*processes, second])
        running_flags = [one.is_running() for one in processes[1:]]
        pids = [*stack.pids.values(), *stack.supervisor.pids.values()]

    assert (bearers, names) == ({bearer}, {f"omnibus_{name}" for name in SERVICES})
    assert len({processes[0], second, third}) == 3
    assert running_flags == [True, True]
    assert all_gone(pids)


async def other_gateway(stack: Stack, but: list[psutil.Process]) -> psutil.Process:
    """Wait for the next process of the gateway, and until it serves."""
    async with asyncio.timeout(60), httpx.AsyncClient() as http:
        while True:
            with contextlib.suppress(httpx.TransportError, psutil.NoSuchProcess, KeyError):
                process = psutil.Process(stack.pids["gateway"])
                if process not in but and (await http.get(f"{stack.url}/readyz")).status_code == 200:
                    return process
            await asyncio.sleep(0.01)


async def test_gateways_that_speak_tls_are_known_by_their_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMNIBUS_GATEWAY_TLS_CERT", str(certificates.CERTIFICATE))
    monkeypatch.setenv("OMNIBUS_GATEWAY_TLS_KEY", str(certificates.KEY))
    async with Stack(NOTHING, apps_dir=tmp_path, fork_executors=False, log=log_to(Lines())) as stack:
        gateway = find_gateway(Namespace(url=""))
        model_list = await asyncio.to_thread(gateway.call, "GET", "/v1/models")
        stranger = Gateway(gateway.url, "", "")
        with pytest.raises(StageUnavailable, match="certificate verify failed"):
            await asyncio.to_thread(stranger.call, "GET", "/v1/models")

    assert (gateway.url, model_list["data"]) == (stack.url, [])
    assert stack.url.startswith("https://")


def test_a_certificate_that_is_none_is_refused_at_once(tmp_path: Path):
    (tmp_path / "tls.crt").write_text("nothing")

    for name in ("tls.crt", "missing.crt"):
        with pytest.raises(BadRequest, match=f"OMNIBUS_GATEWAY_TLS_CERT=.*{name}"):
            Stack(NOTHING, env={"OMNIBUS_GATEWAY_TLS_CERT": str(tmp_path / name)})


def test_each_run_has_a_token_of_its_own_unless_one_is_given(monkeypatch: pytest.MonkeyPatch):
    one, other = Stack(NOTHING), Stack(NOTHING)
    monkeypatch.setenv("OMNIBUS_GATEWAY_ADMIN_TOKEN", "mine")

    assert one.admin_token != other.admin_token
    assert Stack(NOTHING).admin_token == "mine"
    assert Stack(NOTHING, env={"OMNIBUS_GATEWAY_ADMIN_TOKEN": "ours"}).admin_token == "ours"


def test_apps_lie_in_the_current_directory_unless_another_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    assert Stack(NOTHING).apps_dir == tmp_path
    assert Stack(NOTHING, env={"OMNIBUS_GATEWAY_APPS_DIR": "/apps"}).apps_dir == Path("/apps")
    assert Stack(NOTHING, apps_dir=Path("mine")).apps_dir == tmp_path / "mine"


def test_the_file_with_the_token_is_for_its_owner_alone():
    with run_dir.RunDirectory() as directory:
        directory.write_state(runs.RunState(str(directory.path), 1, 0.0, "nats://n", "redis://r", admin_token="secret"))
        files = [*runs.registry_path().iterdir(), *directory.path.iterdir()]

        assert runs.read_state().admin_token == "secret"
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


@pytest.mark.parametrize("port", [99999, -1])
async def test_a_port_that_is_none_is_refused_before_anything_starts(port: int):
    with pytest.raises(BadRequest, match=f"port {port} must be a number"):
        await Stack(NOTHING, port=port, log=log_to(Lines())).__aenter__()


async def test_a_port_that_is_taken_is_refused_before_anything_starts():
    lines = Lines()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(Conflict, match=f"port {port} of 127.0.0.1 is in use"):
            await Stack(NOTHING, port=port, log=log_to(lines)).__aenter__()

    assert lines.getvalue() == ""


@pytest.mark.parametrize("count", [0, -1])
def test_one_gateway_at_least_must_run(count: int):
    with pytest.raises(BadRequest, match="one at least"):
        Stack(NOTHING, gateways=count)
