"""Effect of a flood by one tenant on another, and the charges.

    python -m tests.bench.fair
    python -m tests.bench.fair --only chats schemas --seconds 20

``omnibus up`` runs with API keys and real (tiny) models. The light tenant sends one short chat a second for
``--seconds``. It is first alone. Then another tenant floods the system with one kind of work from a separate process.
Each kind has its own tenant, so its charges are separate:

    light_p99_over_alone   99th percentile of the light tenant's chats during the worst flood, over that alone
    light_served           part of the light tenant's chats that were answered
    charged_over_record    charges of the keys over the GPU-seconds in the records, of the kind that is furthest
                           from 1: the larger of the two over the smaller
    alone_over_no_keys     chats per second of one tenant alone, over those of a system without keys

The benchmark prints a line for each kind to standard error.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import asynccontextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import websockets

from tests.bench.cases import CHARGED, LIGHT_P99, LIGHT_SERVED, TENANT_ALONE

SECONDS, SETTLE_SECONDS, AT_ONCE = 25.0, 3.0, 24
MODEL, IMAGE_MODEL = "qwen2.5-omni-tiny", "qwen-image-tiny"
ADMIN, LIGHT = "word-of-the-operator", "light"
OMNIBUS = str(Path(sys.executable).parent / "omnibus")
PATIENCE = 150.0
#: A request is charged when it ends: nothing runs once nothing was charged for as long as the longest one takes.
_LONGEST_REQUEST_SECONDS = 10.0
#: Flooding tasks of a tenant end after so many seconds, once they are cancelled.
_END_SECONDS = 10.0


class FairRun(NamedTuple):
    """A running system, and the keys of its tenants."""

    name: str
    url: str
    environment: dict[str, str]
    keys: dict[str, str]

    def run_command(self, *arguments: str) -> str:
        process = subprocess.run(
            [OMNIBUS, *arguments, "--run", self.name],
            env=self.environment, check=True, stdout=subprocess.PIPE, text=True, timeout=PATIENCE,
        )  # fmt: skip
        return process.stdout

    def make_client(self, tenant: str) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
        headers = {"authorization": f"Bearer {self.keys.get(tenant, ADMIN)}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=PATIENCE, limits=limits)


#: One unit of a kind of work: what tenant sends it, and its number.
Work = Callable[[FairRun, httpx.AsyncClient, int], Awaitable[int]]


def make_chat(content: str, tokens: int, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": tokens, **more}


async def post_json(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> int:
    return (await http.post(path, json=body)).status_code


async def send_chat(run: FairRun, http: httpx.AsyncClient, number: int) -> int:
    return await post_json(http, "/v1/chat/completions", make_chat(f"long {number}", 4000, ignore_eos=True))


async def send_speech(run: FairRun, http: httpx.AsyncClient, number: int) -> int:
    audio_options = {"modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "wav"}}
    return await post_json(
        http, "/v1/chat/completions", make_chat(f"say {number}", 40, ignore_eos=True, **audio_options)
    )


async def send_response(run: FairRun, http: httpx.AsyncClient, number: int) -> int:
    """Send a background response; cancel it together with the waiting task."""
    body = {
        "model": MODEL,
        "input": f"long {number}",
        "max_output_tokens": 2000,
        "ignore_eos": True,
        "background": True,
    }
    response = await http.post("/v1/responses", json=body)
    if response.status_code != 200:
        return response.status_code
    where = f"/v1/responses/{response.json()['id']}"
    try:
        while (await http.get(where)).json()["status"] in ("queued", "in_progress"):
            await asyncio.sleep(1.0)
    finally:
        await asyncio.shield(http.post(f"{where}/cancel"))
    return 200


async def send_batch(run: FairRun, http: httpx.AsyncClient, number: int) -> int:
    url = "/v1/chat/completions"
    lines = [
        json.dumps(
            {
                "custom_id": str(line),
                "method": "POST",
                "url": url,
                "body": make_chat(f"{number}.{line}", 500, ignore_eos=True),
            }
        )
        for line in range(40)
    ]
    response = await http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("b.jsonl", "\n".join(lines))})
    if response.status_code != 200:
        return response.status_code
    body = {"input_file_id": response.json()["id"], "endpoint": url, "completion_window": "24h"}
    batch = await http.post("/v1/batches", json=body)
    if batch.status_code != 200:
        return batch.status_code
    where = f"/v1/batches/{batch.json()['id']}"
    try:
        while (await http.get(where)).json()["status"] in ("validating", "in_progress", "finalizing"):
            await asyncio.sleep(1.0)
    finally:
        await asyncio.shield(http.post(f"{where}/cancel"))
    return 200


async def send_schema(run: FairRun, http: httpx.AsyncClient, number: int) -> int:
    """Send a schema that exceeds the time limit for checks."""
    names = {f"^n{time.monotonic_ns()}x{each}(a|b)*a(a|b)*$": {"type": "integer"} for each in range(220)}
    schema = {"name": "x", "schema": {"type": "object", "patternProperties": names}}
    return await post_json(
        http, "/v1/chat/completions", make_chat("x", 8, response_format={"type": "json_schema", "json_schema": schema})
    )


async def send_image(run: FairRun, http: httpx.AsyncClient, number: int) -> int:
    body = {"model": IMAGE_MODEL, "prompt": f"a circle {number}", "n": 4, "size": "256x256"}
    return await post_json(http, "/v1/images/generations", body)


async def open_session(run: FairRun, http: httpx.AsyncClient, number: int) -> int:
    """Open a session, request one answer, and return its status."""
    url = f"{run.url.replace('http', 'ws', 1)}/v1/realtime?model={MODEL}"
    headers = {"authorization": http.headers["authorization"]}
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"count {number}"}]}
    try:
        async with websockets.connect(url, additional_headers=headers, max_size=None, ping_interval=None) as socket:
            await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
            await socket.send(json.dumps({"type": "response.create", "response": {"max_output_tokens": 200}}))
            async for event in socket:
                if json.loads(event)["type"] in ("response.done", "error"):
                    return 200
    except websockets.InvalidStatus as refused:
        return refused.response.status_code
    except websockets.ConnectionClosed:
        return 0
    return 0


async def upload_file(run: FairRun, http: httpx.AsyncClient, number: int) -> int:
    content = os.urandom(1 << 20) * 8
    response = await http.post("/v1/files", data={"purpose": "user_data"}, files={"file": (f"{number}.bin", content)})
    if response.status_code == 200:
        await http.delete(f"/v1/files/{response.json()['id']}")
    return response.status_code


KINDS: dict[str, Work] = {
    "chats": send_chat,
    "speech": send_speech,
    "responses": send_response,
    "batches": send_batch,
    "schemas": send_schema,
    "images": send_image,
    "realtime": open_session,
    "uploads": upload_file,
}


def start_system(directory: Path, name: str, keys: tuple[str, ...]) -> FairRun:
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(directory)}
    if keys:
        environment |= {"OMNIBUS_GATEWAY_KEYS": "true", "OMNIBUS_GATEWAY_ADMIN_TOKEN": ADMIN}
    only = ["--only", MODEL, "--only", IMAGE_MODEL]
    up = [OMNIBUS, "up", "--detach", "--json", "--name", name, "--port", "0", *only]
    # Not to a pipe: what it leaves in the background would hold that open.
    with (directory / f"{name}.json").open("wb") as output:
        subprocess.run(up, env=environment, cwd=directory, check=True, stdout=output, timeout=2 * PATIENCE)
    run = FairRun(name, "", environment, {})
    runs = json.loads(subprocess.check_output([OMNIBUS, "ps", "--json"], env=environment, text=True, timeout=PATIENCE))
    rows = runs if isinstance(runs, list) else runs["runs"]
    url = next(row["url"] for row in rows if row.get("run", row.get("name")) == name)
    tenant_keys = {tenant: run.run_command("keys", "create", tenant).split("\n")[0].strip() for tenant in keys}
    return run._replace(url=url.rstrip("/").removesuffix("/v1"), keys=tenant_keys)


@asynccontextmanager
async def run_system(directory: Path, name: str, *keys: str) -> AsyncIterator[FairRun]:
    run = await asyncio.to_thread(start_system, directory, name, keys)
    try:
        yield run
    finally:
        await asyncio.to_thread(run.run_command, "down")


class LightAnswers(NamedTuple):
    """Seconds of the answers, and the statuses."""

    took: list[float]
    statuses: Counter[int]

    @property
    def p99_seconds(self) -> float:
        took = sorted(self.took) or [float("inf")]
        return took[round(0.99 * (len(took) - 1))]


async def send_light(run: FairRun, seconds: float) -> LightAnswers:
    """Send one short chat a second, without waiting for earlier answers."""
    answers = LightAnswers([], Counter())

    async def send_one(http: httpx.AsyncClient, number: int) -> None:
        began = time.perf_counter()
        status = await post_json(http, "/v1/chat/completions", make_chat(f"short {number}", 4, ignore_eos=True))
        answers.took.append(time.perf_counter() - began)
        answers.statuses[status] += 1

    async with run.make_client(LIGHT) as http:
        await send_one(http, 0)  # opens the connection
        answers.took.clear()
        answers.statuses.clear()
        async with asyncio.TaskGroup() as group:
            for number in range(round(seconds)):
                group.create_task(send_one(http, number))
                await asyncio.sleep(1.0)
    return answers


async def keep_sending(run: FairRun, http: httpx.AsyncClient, work: Work, first: int, statuses: Counter[int]) -> None:
    number = first
    while True:
        try:
            status = await work(run, http, number)
        except httpx.HTTPError:
            status = 0
        statuses[status] += 1
        number += AT_ONCE
        if status != 200:
            await asyncio.sleep(0.5)


async def send_flood(run: FairRun, kind: str, seconds: float) -> Counter[int]:
    statuses: Counter[int] = Counter()
    async with run.make_client(kind) as http:
        flood = [asyncio.create_task(keep_sending(run, http, KINDS[kind], n, statuses)) for n in range(AT_ONCE)]
        await asyncio.sleep(seconds)
        for task in flood:
            task.cancel()
        await asyncio.wait(flood, timeout=_END_SECONDS)
    return statuses


def run_flood(run: FairRun, kind: str, seconds: float) -> Counter[int]:
    """Flood the system as one tenant for some seconds and return statuses.

    Runs in a separate process.
    """
    return asyncio.run(send_flood(run, kind, seconds))


async def measure_kind(run: FairRun, pool: Executor, kind: str, seconds: float) -> tuple[LightAnswers, Counter[int]]:
    """Measure the light tenant's chats during a flood of ``kind``.

    Returns the results of the flood as well.
    """
    flooding = asyncio.get_running_loop().run_in_executor(pool, run_flood, run, kind, seconds + 2 * SETTLE_SECONDS)
    await asyncio.sleep(SETTLE_SECONDS)
    light = await send_light(run, seconds)
    return light, await flooding


async def wait_ended(run: FairRun, tenant: str) -> None:
    """Wait until no work of ``tenant`` runs.

    Leftovers of its flood would otherwise affect the next kind.
    """
    before, charge = -1.0, 0.0
    async with asyncio.timeout(PATIENCE):
        while before != charge:
            await asyncio.sleep(_LONGEST_REQUEST_SECONDS)
            before, charge = charge, (await read_charges(run)).get(tenant, 0.0)


async def read_charges(run: FairRun) -> dict[str, float]:
    """GPU-seconds charged by tenant."""
    async with run.make_client("") as http:
        text = (await http.get("/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("omnibus_tenant_gpu_seconds_total{")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


async def compare_charges(run: FairRun) -> dict[str, tuple[float, float]]:
    """Charges and recorded GPU-seconds by tenant, once all cancelled work has ended."""
    await asyncio.sleep(2 * SETTLE_SECONDS)
    charges = await read_charges(run)
    records: Counter[str] = Counter()
    for row in json.loads(await asyncio.to_thread(run.run_command, "usage", "--json")):
        records[row["tenant"]] += row["gpu_seconds"]
    return {tenant: (charges.get(tenant, 0.0), records[tenant]) for tenant in (LIGHT, *KINDS) if records[tenant] > 0}


async def count_alone(run: FairRun, tenant: str, seconds: float) -> float:
    """Tokens a second of one tenant with ``AT_ONCE`` chats at a time."""
    statuses: Counter[int] = Counter()

    async def send_chat(run: FairRun, http: httpx.AsyncClient, number: int) -> int:
        return await post_json(http, "/v1/chat/completions", make_chat(f"alone {number}", 100, ignore_eos=True))

    async with run.make_client(tenant) as http:
        tasks = [asyncio.create_task(keep_sending(run, http, send_chat, n, statuses)) for n in range(AT_ONCE)]
        await asyncio.sleep(SETTLE_SECONDS)
        before = statuses[200]
        await asyncio.sleep(seconds)
        count = statuses[200] - before
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_END_SECONDS)
    return 100 * count / seconds


def compute_ratio(charge: float, usage: float) -> float:
    return max(charge, usage) / max(1e-9, min(charge, usage))


async def measure_fairness(kinds: list[str], seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory_name, ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(int).result(PATIENCE)  # has begun before anything is measured
        directory = Path(directory_name)
        async with run_system(directory, "fair-keys", LIGHT, "alone", *kinds) as run:
            await send_light(run, 5)  # warm
            alone = await send_light(run, seconds)
            print_line(f"light alone: p99 {alone.p99_seconds:.3f} s, {dict(alone.statuses)}")
            worst, totals = 0.0, Counter(alone.statuses)
            for kind in kinds:
                light, flood_statuses = await measure_kind(run, pool, kind, seconds)
                worst, totals = max(worst, light.p99_seconds / alone.p99_seconds), totals + light.statuses
                print_line(
                    f"beside {kind}: p99 {light.p99_seconds:.3f} s, {light.p99_seconds / alone.p99_seconds:.2f} times that alone, "
                    f"{dict(light.statuses)}; of {kind} {dict(flood_statuses)}"
                )
                await wait_ended(run, kind)
            with_keys = await count_alone(run, "alone", seconds / 3)
            charges = await compare_charges(run)
        async with run_system(directory, "fair-open") as run:
            without = await count_alone(run, "", seconds / 3)
    for tenant, (charge, usage) in charges.items():
        print_line(f"{tenant}: charged {charge:.3f} GPU-s, recorded {usage:.3f}, {compute_ratio(charge, usage):.4f}")
    print_line(f"one tenant alone: {with_keys:.0f} tokens/s with keys, {without:.0f} without")
    return {
        LIGHT_P99: worst,
        LIGHT_SERVED: totals[200] / totals.total(),
        CHARGED: max(compute_ratio(*pair) for pair in charges.values()),
        TENANT_ALONE: with_keys / without,
    }


def print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS), help="kinds of work")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each kind")
    options = parser.parse_args()
    print(json.dumps(asyncio.run(measure_fairness(options.only, options.seconds))))
