"""Apps are added, changed and removed in a running system.

This works by HTTP and by hand, at every gateway.
"""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from omnibus.process.tuning import die_with_parent
from omnibus.up.ports import free_ports
from tests.e2e.apps import texts
from tests.e2e.apps.estate import AppSystem, make_source, read_error, wait_until
from tests.e2e.system import ROOT, System

pytestmark = pytest.mark.e2e


@pytest.fixture
def gate_files(tmp_path: Path) -> dict[str, str]:
    """Files through which a slow app and a test report their progress."""
    return {"begun": str(tmp_path / "begun"), "go": str(tmp_path / "go")}


async def start_request(estate: AppSystem, name: str, gate: dict[str, str]) -> "asyncio.Task[httpx.Response]":
    """Start a request to app ``name``; it continues once the gate's file exists."""
    asking = asyncio.create_task(estate.invoke(name, gate))
    await wait_until(lambda: Path(gate["begun"]).exists() or asking.done())
    return asking


async def test_registering_again_changes_nothing_and_every_gateway_serves_it(app_system: AppSystem):
    app_system.write("plain", texts.PLAIN, by="one")

    first = await app_system.register("plain", gateway=0)
    again = await app_system.register("plain", gateway=0, status=200)
    await app_system.wait_for_version("plain", 1)
    other = await app_system.register("plain", gateway=1, status=200)

    assert first["version"] == again["version"] == other["version"] == 1
    assert [await app_system.invoke_json("plain", {}, gateway) for gateway in (0, 1)] == ["one", "one"]
    await app_system.unregister("plain", gateway=1)
    await app_system.wait_for_version("plain", 0)


async def test_a_name_that_is_taken_by_another_app_is_409(app_system: AppSystem):
    async with app_system.app("plain", texts.PLAIN, by="one"):
        app_system.write(
            "other", "from omnibus.app import App\napp = App(name='plain')\n" + texts.fill_text(texts.PLAIN)
        )

        response = await app_system.ask("POST", "/v1/apps", {"source": make_source("other")})

        assert response.status_code == 409
        assert "PUT /v1/apps/plain" in read_error(response)["message"]
        assert await app_system.invoke_json("plain", {}) == "one"


async def test_an_update_starts_beside_the_old_version_which_finishes_its_requests(
    app_system: AppSystem, gate_files: dict[str, str]
):
    async with app_system.app("patient", texts.PATIENT, by="one"):
        asking = await start_request(app_system, "patient", gate_files)
        app_system.write("patient", texts.PLAIN, by="two")

        new_app = await app_system.update("patient")
        await app_system.wait_for_version("patient", 2)
        fresh = [await app_system.invoke_json("patient", {}, gateway) for gateway in (0, 1)]
        Path(gate_files["go"]).touch()
        old = await asking

        assert new_app["version"] == 2
        assert fresh == ["two", "two"]
        assert (old.status_code, old.json()) == (200, "one")
        await wait_until(lambda: [len(app_system.workers(gateway)) for gateway in (0, 1)] == [1, 1])


async def test_a_change_of_a_unit_tasks_code_takes_effect_with_the_update(app_system: AppSystem):
    async with app_system.app("shouting", texts.SHOUT, cls="Shouting"):
        assert await app_system.invoke_json("shouting", "hi") == "HI!"
        app_system.write("shouting", texts.SHOUT.replace("upper", "title"), cls="Shouting")
        before = [await app_system.invoke_json("shouting", "hi", gateway) for gateway in (0, 1)]

        async with app_system.send_repeatedly("shouting", "hi") as answers:
            await app_system.update("shouting")
            await app_system.wait_for_version("shouting", 2)
            after = [await app_system.invoke_json("shouting", "hi", gateway) for gateway in (0, 1)]

        assert before == ["HI!", "HI!"]
        assert after == ["Hi!", "Hi!"]
        assert set(answers) <= {'"HI!"', '"Hi!"'}
        await wait_until(lambda: len(app_system.executors("shouting")) == 1)


@pytest.mark.parametrize(
    ("text", "expected_message"),
    [
        ("async def serve(request)\n    ...\n", "expected ':'"),
        ("import nonsense\n", "No module named 'nonsense' (plain.py, line 1)"),
        ("def serve(request): ...\n", "`async def`"),
        ("from omnibus.app import App\napp = App(name='renamed')\nasync def serve(request): ...\n", "'renamed'"),
        ("import os\nos._exit(3)\n", "exit code 3"),
    ],
    ids=["no Python", "an import", "not async", "renamed", "it exits"],
)
async def test_a_broken_update_says_why_and_the_old_version_serves_on(
    app_system: AppSystem, text: str, expected_message: str
):
    async with app_system.app("plain", texts.PLAIN, by="one"):
        app_system.write("plain", text)

        response = await app_system.ask("PUT", "/v1/apps/plain")

        assert response.status_code == 400
        assert expected_message in read_error(response)["message"]
        app_state = await app_system.show("plain")
        assert app_state is not None
        assert (app_state["version"], app_state["worker"]["state"]) == (1, "ready")
        assert [await app_system.invoke_json("plain", {}, gateway) for gateway in (0, 1)] == ["one", "one"]


async def test_what_is_unregistered_finishes_its_requests_and_is_404_for_new_ones(
    app_system: AppSystem, gate_files: dict[str, str]
):
    app_system.write("patient", texts.PATIENT, by="one")
    await app_system.register("patient")
    asking = await start_request(app_system, "patient", gate_files)

    await app_system.unregister("patient")
    await app_system.wait_for_version("patient", 0)
    late = [await app_system.invoke("patient", gate_files, gateway) for gateway in (0, 1)]
    Path(gate_files["go"]).touch()
    old = await asking

    assert [(answer.status_code, read_error(answer)["code"]) for answer in late] == [(404, "not_found")] * 2
    assert (old.status_code, old.json()) == (200, "one")
    await wait_until(lambda: [app_system.workers(gateway) for gateway in (0, 1)] == [[], []])


@pytest.mark.parametrize("token", ["", "Bearer wrong", "Basic b3BlbjpzZXNhbWU="])
async def test_without_the_token_nothing_can_be_changed(app_system: AppSystem, token: str):
    app_system.write("plain", texts.PLAIN)
    headers = {"authorization": token} if token else {}

    async with app_system.system.http() as http:
        responses = [
            await http.post("/v1/apps", json={"source": make_source("plain")}, headers=headers),
            await http.put("/v1/apps/plain", json={}, headers=headers),
            await http.delete("/v1/apps/plain", headers=headers),
        ]
        listing = await http.get("/v1/apps", headers=headers)

    assert [answer.status_code for answer in responses] == [401, 401, 401]
    assert {answer.headers["www-authenticate"] for answer in responses} == {"Bearer"}
    assert all("OMNIBUS_GATEWAY_ADMIN_TOKEN" in read_error(answer)["message"] for answer in responses)
    assert (listing.status_code, listing.json()["data"]) == (200, [])


@pytest.fixture
def locked_url(system: System) -> Iterator[str]:
    """URL of another gateway without a token."""
    (port,) = free_ports(1)
    settings = system.gateway_environment(0)
    environ = {name: value for name, value in settings.items() if name != "OMNIBUS_GATEWAY_ADMIN_TOKEN"}
    argv = [sys.executable, "-m", "omnibus_gateway"]
    environ |= {"OMNIBUS_GATEWAY_PORT": str(port), "OMNIBUS_SERVICE_METRICS_PORT": "0"}
    with subprocess.Popen(argv, env=environ, cwd=ROOT, preexec_fn=die_with_parent()) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


async def test_a_gateway_without_a_token_serves_apps_and_lets_nobody_change_them(
    app_system: AppSystem, locked_url: str
):
    async with (
        app_system.app("plain", texts.PLAIN, by="one"),
        httpx.AsyncClient(base_url=locked_url, timeout=30) as http,
    ):

        async def is_served() -> bool:
            try:
                return (await http.post("/v1/apps/plain/invoke", json={})).status_code == 200
            except httpx.TransportError:
                return False

        await wait_until(is_served)
        response = await http.post("/v1/apps", json={}, headers={"authorization": "Bearer anything"})

        assert response.status_code == 403
        assert "OMNIBUS_GATEWAY_ADMIN_TOKEN" in read_error(response)["message"]


def test_the_same_by_hand(app_system: AppSystem):
    app_system.write("plain", texts.PLAIN, by="one")
    file = str(app_system.directory / "plain.py")

    assert app_system.run_cli("app", "check", file)[0] == 0
    registration = app_system.run_cli("app", "register", file)
    again = app_system.run_cli("app", "register", file)
    listing = app_system.run_cli("app", "list")
    invocation = app_system.run_cli("app", "invoke", "plain", "{}")
    app_system.write("plain", texts.PLAIN, by="two")
    update_result = app_system.run_cli("app", "update", "plain")
    state_output = app_system.run_cli("app", "show", "plain")
    other = app_system.run_cli("app", "invoke", "plain", "{}")
    removal = app_system.run_cli("app", "unregister", "plain")
    late = app_system.run_cli("app", "invoke", "plain", "{}")

    assert registration[0] == again[0] == 0
    assert "plain is registered, version 1" in registration[1]
    assert "version 1" in again[1]
    assert re.search(r"^plain +1 +ready +- +-$", listing[1], re.MULTILINE)
    assert invocation == (0, "one\n")
    assert "plain is updated, version 2" in update_result[1]
    assert re.search(r"^state +ready$", state_output[1], re.MULTILINE)
    assert other == (0, "two\n")
    assert removal == (0, "plain is unregistered\n")
    assert late == (1, "omnibus: unknown app 'plain' (registered apps: none)\n")
