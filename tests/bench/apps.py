"""Measure how registering and unregistering one app affects another app.

    python -m tests.bench.apps

App A receives requests at a constant rate, whether or not earlier ones have been answered. Rounds without other
activity alternate with rounds in which app B is registered and unregistered every second. Each registration starts B's
worker; its executor starts once. The result is the 99th percentile of latency with B over that without, the median over
pairs of rounds. A failed request, or a round in which B did not run, ends the measurement with an error.
"""

import asyncio
import contextlib
import io
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import uvloop

from omnibus.process.logs import Log
from omnibus.up.stack import Stack
from tests.bench import bodies

RATIO = "apps.register_p99_ratio"
#: Directory of the apps: that which is measured is ``bodies.APP``.
SERVED = Path(__file__).parent / "served"
_OTHER = "restless"

_PAIRS = 5
_RATE = 100.0  # requests per second
_ROUND = 4.0  # seconds
#: Seconds between two registrations of B: far more frequent than in practice, but long enough for more than its start.
_TURN = 1.0
_WITHIN = 60.0  # seconds for anything to answer
_NO_MODELS = '{"models": {}}'
#: Seconds that requests of B may finish: short, so that its executor is soon gone when its round is over.
_DRAIN = "0.2"


class Operator:
    """Client that registers apps over one connection, which costs almost no CPU."""

    def __init__(self, stack: Stack) -> None:
        headers = {"authorization": f"Bearer {stack.admin_token}"}
        self._http = httpx.AsyncClient(base_url=stack.url, headers=headers, timeout=_WITHIN, verify=False)

    async def register_app(self, module: str) -> None:
        await self._request_json("POST", "/v1/apps", 201, json={"source": {"module": module, "directory": "."}})

    async def unregister_app(self, name: str) -> None:
        await self._request_json("DELETE", f"/v1/apps/{name}", 200, 404)

    async def list_names(self, path: str) -> set[str]:
        """Names of all apps, or tasks."""
        return {each["name"] for each in (await self._request_json("GET", path, 200))["data"]}

    async def worker_states(self) -> dict[str, str]:
        """States of workers by app, as the gateway reports them."""
        apps = (await self._request_json("GET", "/v1/apps", 200))["data"]
        return {app["name"]: app["worker"]["state"] for app in apps if app["worker"]}

    async def __aenter__(self) -> "Operator":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def _request_json(self, method: str, path: str, *allowed: int, **more: Any) -> Any:
        answer = await self._http.request(method, path, **more)
        if answer.status_code not in allowed:
            raise RuntimeError(f"{method} {path}: {answer.text}")
        return answer.json()


@contextlib.asynccontextmanager
async def run_app_system() -> AsyncIterator[tuple[Stack, Operator]]:
    """A system without models that serves app A; it prints logs only on failure."""
    lines = io.StringIO()
    env = {"OMNIBUS_GATEWAY_APP_DRAIN": _DRAIN}
    new_stack = Stack(_NO_MODELS, apps_dir=SERVED, env=env, log=Log(lines), fork_executors=False)
    try:
        async with new_stack as stack, Operator(stack) as operator:
            await operator.register_app(bodies.APP)
            yield stack, operator
    except BaseException:
        print(lines.getvalue()[-8000:], file=sys.stderr)
        raise


class _Steady:
    """Requests to app A at a steady rate; ``latencies`` in milliseconds, counted from when each was due."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._seeds = iter(range(bodies.FIRST, bodies.LAST))

    async def send_round(self, seconds: float) -> list[float]:
        latencies: list[float] = []
        start_time, count = time.perf_counter(), int(seconds * _RATE)
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                due = start_time + number / _RATE
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                group.create_task(self._send_one(due, latencies))
        self.close()  # the gateway closes what is idle for long
        return latencies

    async def _send_one(self, due: float, latencies: list[float]) -> None:
        connection = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        seed = next(self._seeds)
        async with asyncio.timeout(_WITHIN):
            reply = await _send_request(*connection, bodies.fill_template(bodies.make_echo(), seed))
        latencies.append(1000 * (time.perf_counter() - due))
        if reply != {"seed": seed}:
            raise RuntimeError(f"request {seed} failed: {reply}")
        self._idle.append(connection)

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()


async def _send_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> object:
    head = f"POST /v1/apps/{bodies.APP}/invoke HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    headers = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = headers.partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return json.loads(await reader.readexactly(int(length)))


async def _come_and_go(operator: Operator, turns: list[float]) -> None:
    """Register and unregister app B every ``_TURN`` seconds until cancelled.

    ``turns`` gets the times of its removals.
    """
    while True:
        start_time = time.monotonic()
        await operator.register_app(_OTHER)
        await operator.unregister_app(_OTHER)
        turns.append(time.monotonic())
        await asyncio.sleep(start_time + _TURN - turns[-1])


async def _measure_disturbed(operator: Operator, steady: _Steady) -> list[float]:
    turns: list[float] = []
    restless = asyncio.create_task(_come_and_go(operator, turns))
    try:
        latencies = await steady.send_round(_ROUND)
    finally:
        going = restless.cancel()
        await asyncio.gather(restless, return_exceptions=True)
    if not going:
        restless.result()
    if not turns:
        raise RuntimeError(f"{_OTHER} did not come and go within {_ROUND:g} s")
    await _remove_other(operator)
    return latencies


async def _remove_other(operator: Operator) -> None:
    """Unregister B, and wait until it is gone before the next round."""
    async with asyncio.timeout(_WITHIN):
        while True:
            if _OTHER in await operator.list_names("/v1/apps"):
                await operator.unregister_app(_OTHER)
            elif "louden" not in await operator.list_names("/v1/tasks"):
                return
            await asyncio.sleep(0.1)


def compute_p99(latencies: list[float]) -> float:
    return statistics.quantiles(latencies, n=100)[98]


async def _measure_ratio() -> float:
    async with run_app_system() as (stack, operator):
        steady = _Steady(stack.port)
        await steady.send_round(1.0)
        ratios = []
        for _ in range(_PAIRS):
            quiet = compute_p99(await steady.send_round(_ROUND))
            ratios.append(compute_p99(await _measure_disturbed(operator, steady)) / quiet)
    return statistics.median(ratios)


def measure_apps() -> dict[str, float]:
    return {RATIO: round(uvloop.run(_measure_ratio()), 3)}


if __name__ == "__main__":
    print(json.dumps(measure_apps()))
