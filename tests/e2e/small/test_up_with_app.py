"""``omnibus up --no-models --app`` serves only the app's tasks, at every gateway.

They are removed together with the app.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.system import ROOT, System, start_system

pytestmark = pytest.mark.e2e

WITHIN = 30.0  # seconds for executors to end
SHOUT = str(ROOT / "examples" / "shout.py")


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    flags = ("--gateways", "2", "--apps-dir", str(ROOT / "examples"), "--app", SHOUT)
    with start_system(tmp_path, {}, *flags, OMNIBUS_GATEWAY_APP_DRAIN="0.1") as system:
        yield system


def list_executors(system: System) -> list[psutil.Process]:
    """Processes of executors, without any that is about to end."""
    result = []
    for process in system.processes():
        try:
            if "OMNIBUS_EXECUTOR_ID" in process.environ():
                result.append(process)
        except psutil.Error:
            continue
    return result


async def call_app(http: httpx.AsyncClient) -> httpx.Response:
    """Call the app; a 503, which an executor without processor time causes, is retried as clients do."""
    async with asyncio.timeout(WITHIN):
        while (answer := await http.post("/v1/apps/shout/invoke", json={"text": "hello"})).status_code == 503:
            print(answer.text)
            await asyncio.sleep(float(answer.headers["retry-after"]))
    return answer


async def test_an_app_and_what_it_brings_are_served_until_it_is_unregistered(system: System):
    token = {"authorization": f"Bearer {system.state.admin_token}"}
    options = {process.environ()["OMNIBUS_EXECUTOR_OPTION"] for process in list_executors(system)}

    async with system.http(0) as one, system.http(1) as other:
        answers = [await call_app(http) for http in (one, other)]
        response = await one.delete("/v1/apps/shout", headers=token)
        async with asyncio.timeout(WITHIN):
            while list_executors(system):
                await asyncio.sleep(0.05)
        after = [await call_app(http) for http in (one, other)]

        ready = [await http.get("/readyz") for http in (one, other)]

    assert options == {"shout", "echo"}
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].text == answers[1].text
    assert answers[0].text.count("HELLO!") == 2
    assert response.status_code == 200
    assert [answer.status_code for answer in after] == [404, 404]
    assert [answer.json()["ready"] for answer in ready] == [True, True]
