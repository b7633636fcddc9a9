"""Cost of reading another node's tensors, and time to detect its loss.

    python -m tests.bench.nodes

Two nodes run in network namespaces with real sidecars. For whole requests, two nodes run over loopback. CPU is that of
both sidecars, without the work of clients.
"""

import asyncio
import json
import os
import signal
import sys
import time
from statistics import median
from typing import Any

import psutil

from tests.bench import bodies, floor
from tests.bench.cases import CASES, UCX, text_answer
from tests.bench.system import PATHS, run_system
from tests.nodes.cluster import MIB, NodeMachine, start_nodes, wait_until
from tests.nodes.namespaces import DATA

_PULL_MIB = 32
_PULLS = 12
_AT_ONCE = 4
_IDLE_SECONDS = 5.0
_CALLS = 200
_STREAMS_PORT = 7500
_ROUNDS = 3


async def measure_nodes() -> dict[str, float]:
    """Every value by its name."""
    values = await _measure_pulls()
    values |= await _measure_huge_pages()
    if UCX:
        values |= await _measure_ucx()
    for how in ("killed", "frozen", "cut", "powered_off"):
        values[f"nodes.detect_s.{how}"] = await _measure_detection(how)
    async with run_system(bodies.IMAGE_MODEL, nodes=2) as system:
        for mib in (8, 32):
            speech_case = CASES[f"tensor.{mib}MiB.c1.cpu_ms"]
            for name, case in (("tensor", text_answer(speech_case, mib)), ("spoken", speech_case)):
                totals = [(await system.take_sample("nodes", case)).total for _ in range(_ROUNDS)]
                values[f"nodes.{name}{mib}MiB.c1.cpu_ms"] = median(totals)
    return {name: round(value, 4) for name, value in values.items()}


async def _measure_pulls() -> dict[str, float]:
    async with start_nodes("a", "b", OMNIBUS_SIDECAR_ARENA_MIB="512") as (a, b):
        await _pull_all(a, b, _PULLS)  # memory that was never touched costs more
        copies = [floor.copy_ms() for _ in range(_ROUNDS)]
        pulls: list[float] = []
        streams: dict[str, list[float]] = {"asyncio": [], "uvloop": []}
        for _ in range(_ROUNDS):
            before = _cpu_seconds(a, b)
            await _pull_all(a, b, _PULLS)
            pulls.append(1000 * (_cpu_seconds(a, b) - before) / _PULLS)
            for loop, times in streams.items():
                times.append(1000 * await _stream_seconds(a, b, loop) / _PULLS)
        idle = await _idle_percent(a, b)
        lags = [await _lag_seconds(a, b) for _ in range(_ROUNDS)]
        pull = median(pulls)
        return {
            "nodes.pull32MiB.cpu_ms": pull,
            "nodes.pull_over_memcpy": pull / median(copies),
            "nodes.pull_over_streams": pull / median(streams["asyncio"]),
            "nodes.pull_over_uvloop_streams": pull / median(streams["uvloop"]),
            "nodes.idle_cpu_percent": idle,
            "nodes.control_lag_p99_ms": 1000 * median(busy for _, busy in lags),
            "nodes.control_lag_idle_p99_ms": 1000 * median(idle for idle, _ in lags),
            "nodes.control_lag_over_idle": median(busy / idle for idle, busy in lags),
        }


async def _lag_seconds(a: NodeMachine, b: NodeMachine) -> tuple[float, float]:
    """99th percentile of sidecar ``b``'s response time, idle and during pulls."""
    idle = await b.agent.get("lag", "p99", count=_CALLS)
    pulling = asyncio.create_task(_pull_all_the_time(a, b))
    try:
        return idle, await b.agent.get("lag", "p99", count=_CALLS)
    finally:
        pulling.cancel()
        await asyncio.gather(pulling, return_exceptions=True)
        for index in range(_AT_ONCE):  # what they left open
            for machine in (a, b):
                await machine.agent.send_command("end", invocation=f"at-once-{index}")


async def _measure_huge_pages() -> dict[str, float]:
    """Pull between arenas with pages of 2 MiB and of 4 KiB, alternately."""
    settings = {"OMNIBUS_SIDECAR_ARENA_MIB": "512"}
    async with start_nodes("a", "b", small_pages=True, **settings) as small, start_nodes("a", "b", **settings) as huge:
        return {"nodes.pull_huge_pages_over_small": await _pull_in_turns(huge, small)}


async def _measure_ucx() -> dict[str, float]:
    """Pulls over UCX's TCP, alternating with those over plain TCP."""
    settings = {"OMNIBUS_SIDECAR_ARENA_MIB": "512", "UCX_TLS": "tcp", "UCX_NET_DEVICES": DATA}
    async with (
        start_nodes("a", "b", **settings) as tcp,
        start_nodes("a", "b", OMNIBUS_SIDECAR_TRANSPORT="ucx", **settings) as ucx,
    ):
        ratio = await _pull_in_turns(ucx, tcp)
        stats = await ucx[1].agent.stats()
        if stats["ucx_failures_by_node"]:
            raise RuntimeError(f"UCX failed, and TCP did its work: {stats}")
        return {"nodes.pull_ucx_over_tcp": ratio, "nodes.ucx_idle_cpu_percent": await _idle_percent(*ucx)}


async def _pull_in_turns(pair: list[NodeMachine], other: list[NodeMachine]) -> float:
    """CPU of pulls by ``pair`` over that of equal pulls by ``other``."""
    times: list[list[float]] = [[], []]
    for turn in range(_ROUNDS + 1):
        for machines, seconds in zip((pair, other), times, strict=True):
            before = _cpu_seconds(*machines)
            await _pull_all(*machines, _PULLS)
            if turn:  # memory that was never touched costs more
                seconds.append(_cpu_seconds(*machines) - before)
    return median(times[0]) / median(times[1])


async def _pull_all(a: NodeMachine, b: NodeMachine, count: int) -> None:
    for number in range(count):
        await _pull_one(a, b, f"i{number}")


async def _pull_one(a: NodeMachine, b: NodeMachine, invocation: str) -> None:
    handle = await a.agent.get("put", "handle", nbytes=_PULL_MIB * MIB, value=7, invocation=invocation)
    await b.agent.get("open", "nbytes", handle=handle, invocation=invocation, count=False)
    for machine in (a, b):
        await machine.agent.send_command("end", invocation=invocation)


async def _pull_all_the_time(a: NodeMachine, b: NodeMachine) -> None:
    """Keep ``_AT_ONCE`` pulls in flight until cancelled."""

    async def pull_on(index: int) -> None:
        while True:
            await _pull_one(a, b, f"at-once-{index}")

    await asyncio.gather(*map(pull_on, range(_AT_ONCE)))


async def _stream_seconds(a: NodeMachine, b: NodeMachine, loop: str) -> float:
    """CPU seconds of both ends for equal copies by asyncio streams."""
    arguments = (a.node.address(DATA), str(_STREAMS_PORT), str(_PULL_MIB), str(_PULLS))
    source = await _start_stream(a, loop, "source", *arguments)
    assert source.stdout is not None
    await source.stdout.readline()
    sink = await _start_stream(b, loop, "sink", *arguments)
    assert sink.stdout is not None
    seconds = float(await sink.stdout.readline()) + float(await source.stdout.readline())
    await asyncio.gather(source.wait(), sink.wait())
    return seconds


async def _start_stream(machine: NodeMachine, *arguments: str) -> "asyncio.subprocess.Process":
    return await asyncio.create_subprocess_exec(
        *machine.node.command_prefix, sys.executable, "-m", "tests.bench.streams", *arguments,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": PATHS},
    )  # fmt: skip


async def _idle_percent(*machines: NodeMachine) -> float:
    """CPU percent of the busier sidecar while connected nodes pull nothing."""
    before = [_cpu_seconds(machine) for machine in machines]
    began = time.perf_counter()
    await asyncio.sleep(_IDLE_SECONDS)
    after = [_cpu_seconds(machine) for machine in machines]
    seconds = max(late - early for late, early in zip(after, before, strict=True))
    return 100 * seconds / (time.perf_counter() - began)


async def _measure_detection(how: str) -> float:
    """Seconds from a loss during a pull until its error."""
    async with start_nodes("a", "b") as (a, b):
        b.node.limit_rate("25mbit")
        handle = await a.agent.get("put", "handle", nbytes=_PULL_MIB * MIB, value=7, invocation="i")
        before = b.node.received_bytes()
        opening: asyncio.Task[Any] = asyncio.create_task(b.agent.send_command("open", handle=handle, invocation="i"))
        await wait_until(lambda: b.node.received_bytes() > before + MIB)
        began = time.perf_counter()
        if how == "killed":
            a.signal_sidecar(signal.SIGKILL)
        elif how == "frozen":
            a.signal_sidecar(signal.SIGSTOP)
        elif how == "cut":
            a.node.cut_cable(DATA)
        else:
            a.node.power_off()
        answer = await opening
        seconds = time.perf_counter() - began
    if answer.get("error") != "node_unreachable":
        raise RuntimeError(f"{how}: {answer}")
    return seconds


def _cpu_seconds(*machines: NodeMachine) -> float:
    times = [psutil.Process(machine.sidecar_pid).cpu_times() for machine in machines]
    return float(sum(each.user + each.system for each in times))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure_nodes())))
