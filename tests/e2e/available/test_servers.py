"""Requests and jobs survive the loss of any highly available server."""

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.available.servers import Servers, running_servers
from tests.e2e.system import VL, System, declare_model

pytestmark = pytest.mark.e2e

DIRECTOR = "ltx2-tiny"
_AT_ONCE = 16
#: Seconds within which the service is whole again.
_WHOLE_SECONDS = 10.0
#: Seconds of load before a server is killed, and after the service is whole.
_CALM_SECONDS = 2.0
FILM = {
    "model": DIRECTOR,
    "prompt": "a cat sits on the mat",
    "seconds": "0.375",
    "size": "64x32",
    "steps": 4,
    "seed": 1,
}


class OtherServersSystem(System):
    """A system that does not use the servers that it starts."""

    def program(self, *arguments: str) -> Sequence[str]:
        module = "tests.e2e.available.up" if arguments[:1] == ("up",) else "omnibus.cli"
        return (sys.executable, "-u", "-m", module, *arguments)

    @property
    def ports(self) -> list[int]:
        """Ports of the gateways: the supervisor does not start the servers."""
        return [port for url in self.urls if (port := urlsplit(url).port) is not None]


class FailoverLoad:
    """Clients that send requests in sequence without pauses, and the answers."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.outcomes: Counter[str] = Counter()
        self.slowest = 0.0
        self._end = asyncio.Event()

    async def run(self) -> None:
        await asyncio.gather(*(self._send_requests(index) for index in range(_AT_ONCE)))

    def stop(self) -> None:
        self._end.set()

    async def _send_requests(self, index: int) -> None:
        body = {
            "model": VL,
            "messages": [{"role": "user", "content": f"hello world, say {index}"}],
            "max_tokens": 8,
            "temperature": 0,
            "seed": 7,
        }
        truth = ""
        async with self._system.http(index % 2) as http:
            while not self._end.is_set():
                began = time.monotonic()
                answer = await http.post("/v1/chat/completions", json=body)
                self.slowest = max(self.slowest, time.monotonic() - began)
                if answer.status_code != 200:
                    self.outcomes[answer.text] += 1
                    continue
                self.outcomes["answered"] += 1
                content = answer.json()["choices"][0]["message"]["content"]
                truth = truth or content
                assert content == truth


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with running_servers(tmp_path) as all_servers:
        yield all_servers


@pytest.fixture
async def system(servers: Servers, tmp_path: Path, vl_checkpoint: Path, ltx2_checkpoint: Path) -> AsyncIterator[System]:
    director = declare_model("ltx2", ltx2_checkpoint)
    models = {
        VL: declare_model("qwen2_5_vl", vl_checkpoint),
        DIRECTOR: {**director, "options": {"M": director["options"]["M"]}, "paths": [{"options": ["M"]}]},
    }
    settings = {
        "TEST_BUS_URL": servers.bus_url,
        "TEST_STORE_URL": servers.store_url,
        "OMNIBUS_BUS_REPLICAS": "3",
    }
    place = tmp_path / "system"
    place.mkdir()
    new_system = OtherServersSystem(place, models, settings, ("--gateways", "2"))
    try:
        await asyncio.to_thread(new_system.start)
        yield new_system
    except BaseException:
        print(new_system.log[-8000:])
        raise
    finally:
        leftovers = await asyncio.to_thread(new_system.stop)
    assert leftovers == []


@pytest.mark.timeout(900)
async def test_no_request_fails_and_no_job_is_lost_whichever_server_is_killed(servers: Servers, system: System):
    load = FailoverLoad(system)
    loading = asyncio.create_task(load.run())
    jobs: list[str] = []
    times: dict[str, float] = {}
    async with system.http() as http:
        for name, server in sorted(servers.by_name.items()):
            jobs.append(await submit_video(http))
            await asyncio.sleep(_CALM_SECONDS)
            kind = f"{name} (primary)" if name == await servers.primary_name() else name

            server.kill()
            began = time.monotonic()
            jobs.append(await submit_when_whole(http, began))
            times[kind] = time.monotonic() - began

            await asyncio.sleep(_CALM_SECONDS)
            await server.start()
            await servers.wait_agreed()
        load.stop()
        await loading
        states = Counter([await state_at_end(http, job) for job in jobs])

    print({name: round(seconds, 1) for name, seconds in times.items()}, dict(load.outcomes), round(load.slowest, 1))
    assert load.outcomes.keys() == {"answered"}, load.outcomes
    assert max(times.values()) <= _WHOLE_SECONDS, times
    assert states == {"completed": len(jobs)}


async def submit_video(http: httpx.AsyncClient) -> str:
    answer = await http.post("/v1/videos", json=FILM)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def submit_when_whole(http: httpx.AsyncClient, began: float) -> str:
    """Submit a video until it is accepted.

    This requires the store, the bus and the streams.
    """
    while time.monotonic() < began + 3 * _WHOLE_SECONDS:
        with contextlib.suppress(httpx.HTTPError):
            answer = await http.post("/v1/videos", json=FILM)
            if answer.status_code == 200 and (await http.get("/readyz")).status_code == 200:
                return str(answer.json()["id"])
            assert answer.status_code in (200, 503), answer.text
        await asyncio.sleep(0.1)
    raise AssertionError("no video is taken any more")


async def state_at_end(http: httpx.AsyncClient, job: str) -> Any:
    async with asyncio.timeout(120):
        while (state := (await http.get(f"/v1/videos/{job}")).json().get("status")) in ("queued", "in_progress"):
            await asyncio.sleep(0.2)
    return state
