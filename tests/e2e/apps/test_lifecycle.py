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

from omnibus.process.parent_death import die_with_parent
from omnibus.up.ports import free_ports
from tests.e2e.apps import texts
from tests.e2e.apps.estate import Estate, error, source, until
from tests.e2e.system import ROOT, System

pytestmark = pytest.mark.e2e


@pytest.fixture
def gate(tmp_path: Path) -> dict[str, str]:
    """Files through which a slow app and a test report their progress."""
    return {"begun": str(tmp_path / "begun"), "go": str(tmp_path / "go")}


async def begun(estate: Estate, name: str, gate: dict[str, str]) -> "asyncio.Task[httpx.Response]":
    """Start a request to app ``name``; it continues once the gate's file exists."""
    asking = asyncio.create_task(estate.invoke(name, gate))
    await until(lambda: Path(gate["begun"]).exists() or asking.done())
    return asking


async def test_registering_again_changes_nothing_and_every_gateway_serves_it(land: Estate):
    land.write("plain", texts.PLAIN, by="one")

    first = await land.register("plain", gateway=0)
    again = await land.register("plain", gateway=0, status=200)
    await land.everywhere("plain", 1)
    other = await land.register("plain", gateway=1, status=200)

    assert first["version"] == again["version"] == other["version"] == 1
    assert [await land.said("plain", {}, gateway) for gateway in (0, 1)] == ["one", "one"]
    await land.unregister("plain", gateway=1)
    await land.everywhere("plain", 0)


async def test_a_name_that_is_taken_by_another_app_is_409(land: Estate):
    async with land.app("plain", texts.PLAIN, by="one"):
        land.write("other", "from omnibus.app import App\napp = App(name='plain')\n" + texts.filled(texts.PLAIN))

        refused = await land.ask("POST", "/v1/apps", {"source": source("other")})

        assert refused.status_code == 409
        assert "PUT /v1/apps/plain" in error(refused)["message"]
        assert await land.said("plain", {}) == "one"


async def test_an_update_starts_beside_the_old_version_which_finishes_its_requests(land: Estate, gate: dict[str, str]):
    async with land.app("patient", texts.PATIENT, by="one"):
        asking = await begun(land, "patient", gate)
        land.write("patient", texts.PLAIN, by="two")

        changed = await land.update("patient")
        await land.everywhere("patient", 2)
        fresh = [await land.said("patient", {}, gateway) for gateway in (0, 1)]
        Path(gate["go"]).touch()
        old = await asking

        assert changed["version"] == 2
        assert fresh == ["two", "two"]
        assert (old.status_code, old.json()) == (200, "one")
        await until(lambda: [len(land.workers(gateway)) for gateway in (0, 1)] == [1, 1])


async def test_a_change_of_a_unit_tasks_code_takes_effect_with_the_update(land: Estate):
    async with land.app("shouting", texts.SHOUT, cls="Shouting"):
        assert await land.said("shouting", "hi") == "HI!"
        land.write("shouting", texts.SHOUT.replace("upper", "title"), cls="Shouting")
        before = [await land.said("shouting", "hi", gateway) for gateway in (0, 1)]

        async with land.busy("shouting", "hi") as answers:
            await land.update("shouting")
            await land.everywhere("shouting", 2)
            after = [await land.said("shouting", "hi", gateway) for gateway in (0, 1)]

        assert before == ["HI!", "HI!"]
        assert after == ["Hi!", "Hi!"]
        assert set(answers) <= {'"HI!"', '"Hi!"'}
        await until(lambda: len(land.executors("shouting")) == 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("async def serve(request)\n    ...\n", "expected ':'"),
        ("import nonsense\n", "No module named 'nonsense' (plain.py, line 1)"),
        ("def serve(request): ...\n", "`async def`"),
        ("from omnibus.app import App\napp = App(name='renamed')\nasync def serve(request): ...\n", "'renamed'"),
        ("import os\nos._exit(3)\n", "exit code 3"),
    ],
    ids=["no Python", "an import", "not async", "renamed", "it exits"],
)
async def test_a_broken_update_says_why_and_the_old_version_serves_on(land: Estate, text: str, said: str):
    async with land.app("plain", texts.PLAIN, by="one"):
        land.write("plain", text)

        refused = await land.ask("PUT", "/v1/apps/plain")

        assert refused.status_code == 400
        assert said in error(refused)["message"]
        shown = await land.show("plain")
        assert shown is not None
        assert (shown["version"], shown["worker"]["state"]) == (1, "ready")
        assert [await land.said("plain", {}, gateway) for gateway in (0, 1)] == ["one", "one"]


async def test_what_is_unregistered_finishes_its_requests_and_is_404_for_new_ones(land: Estate, gate: dict[str, str]):
    land.write("patient", texts.PATIENT, by="one")
    await land.register("patient")
    asking = await begun(land, "patient", gate)

    await land.unregister("patient")
    await land.everywhere("patient", 0)
    late = [await land.invoke("patient", gate, gateway) for gateway in (0, 1)]
    Path(gate["go"]).touch()
    old = await asking

    assert [(answer.status_code, error(answer)["code"]) for answer in late] == [(404, "not_found")] * 2
    assert (old.status_code, old.json()) == (200, "one")
    await until(lambda: [land.workers(gateway) for gateway in (0, 1)] == [[], []])


@pytest.mark.parametrize("token", ["", "Bearer wrong", "Basic b3BlbjpzZXNhbWU="])
async def test_without_the_token_nothing_can_be_changed(land: Estate, token: str):
    land.write("plain", texts.PLAIN)
    headers = {"authorization": token} if token else {}

    async with land.system.http() as http:
        refused = [
            await http.post("/v1/apps", json={"source": source("plain")}, headers=headers),
            await http.put("/v1/apps/plain", json={}, headers=headers),
            await http.delete("/v1/apps/plain", headers=headers),
        ]
        listed = await http.get("/v1/apps", headers=headers)

    assert [answer.status_code for answer in refused] == [401, 401, 401]
    assert {answer.headers["www-authenticate"] for answer in refused} == {"Bearer"}
    assert all("OMNIBUS_GATEWAY_ADMIN_TOKEN" in error(answer)["message"] for answer in refused)
    assert (listed.status_code, listed.json()["data"]) == (200, [])


@pytest.fixture
def locked(system: System) -> Iterator[str]:
    """URL of another gateway without a token."""
    (port,) = free_ports(1)
    given = system.gateway_environment(0)
    environ = {name: value for name, value in given.items() if name != "OMNIBUS_GATEWAY_ADMIN_TOKEN"}
    argv = [sys.executable, "-m", "omnibus_gateway"]
    environ |= {"OMNIBUS_GATEWAY_PORT": str(port), "OMNIBUS_SERVICE_METRICS_PORT": "0"}
    with subprocess.Popen(argv, env=environ, cwd=ROOT, preexec_fn=die_with_parent()) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


async def test_a_gateway_without_a_token_serves_apps_and_lets_nobody_change_them(land: Estate, locked: str):
    async with land.app("plain", texts.PLAIN, by="one"), httpx.AsyncClient(base_url=locked, timeout=30) as http:

        async def serves() -> bool:
            try:
                return (await http.post("/v1/apps/plain/invoke", json={})).status_code == 200
            except httpx.TransportError:
                return False

        await until(serves)
        refused = await http.post("/v1/apps", json={}, headers={"authorization": "Bearer anything"})

        assert refused.status_code == 403
        assert "OMNIBUS_GATEWAY_ADMIN_TOKEN" in error(refused)["message"]


def test_the_same_by_hand(land: Estate):
    land.write("plain", texts.PLAIN, by="one")
    file = str(land.directory / "plain.py")

    assert land.omnibus("app", "check", file)[0] == 0
    registered = land.omnibus("app", "register", file)
    again = land.omnibus("app", "register", file)
    listed = land.omnibus("app", "list")
    called = land.omnibus("app", "invoke", "plain", "{}")
    land.write("plain", texts.PLAIN, by="two")
    updated = land.omnibus("app", "update", "plain")
    shown = land.omnibus("app", "show", "plain")
    other = land.omnibus("app", "invoke", "plain", "{}")
    gone = land.omnibus("app", "unregister", "plain")
    late = land.omnibus("app", "invoke", "plain", "{}")

    assert registered[0] == again[0] == 0
    assert "plain is registered, version 1" in registered[1]
    assert "version 1" in again[1]
    assert re.search(r"^plain +1 +ready +- +-$", listed[1], re.MULTILINE)
    assert called == (0, "one\n")
    assert "plain is updated, version 2" in updated[1]
    assert re.search(r"^state +ready$", shown[1], re.MULTILINE)
    assert other == (0, "two\n")
    assert gone == (0, "plain is unregistered\n")
    assert late == (1, "omnibus: unknown app 'plain' (registered apps: none)\n")
