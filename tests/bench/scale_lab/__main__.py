"""Lab for the data plane: many executors and gateways on one real NATS server.

    python -m tests.bench.scale_lab [--executors 1000] [--gateways 16] [--per-connection 1] [--only plane|chats]

To stderr it prints, for 2 gateways and for ``--gateways``, the messages and bytes that the server delivers, and the CPU
of each component. To stdout it prints figures in JSON:

    scale.heartbeats_deliveries_per_executor   deliveries per heartbeat, with many gateways by that with two
    scale.lost_node_s, scale.frozen_node_s     seconds until the last gateway sends no more requests to eight executors
                                               of a node that was killed, or frozen
    scale.all_ready_s                          seconds until two gateways and the planner know all executors, from the
                                               start of their processes
    scale.text_cpu_ms_1000_over_16             CPU of a chat in all processes, the client's too, with all executors by
                                               that with 16

All processes share one machine, so their CPU competes: read rates and ratios, not latencies of a full machine.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from omnibus.bus.heartbeats import EXECUTOR_HEARTBEAT_SECONDS
from omnibus.up import infra
from tests.bench.cases import ALL_READY, BEATS, FROZEN_NODE, LOST_NODE, TEXT_1000
from tests.bench.scale_lab.hosts import PER_NODE
from tests.bench.system import PATHS

_PROCESSES = 4  # of executors
_GATEWAYS_PER_PROCESS = 8
_SETTLE_SECONDS, _MEASURE_SECONDS = 6.0, 6.0
_CHATS = 8000
_ROUNDS = 5
_UP_WITHIN = 300.0


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class LabHost:
    """A process of ``hosts`` that answers commands."""

    def __init__(self, process: asyncio.subprocess.Process, role: str) -> None:
        self.process = process
        self.role = role

    async def call(self, do: str, **more: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **more}).encode() + b"\n")
        return await self.read()

    async def read(self) -> Any:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), _UP_WITHIN)
        if not line:
            raise RuntimeError(f"a host of {self.role} ended; its error is above")
        return json.loads(line)

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


class Lab:
    """A NATS server, and hosts that use it."""

    def __init__(self, stack: AsyncExitStack, url: str, monitor: str, pid: int) -> None:
        self._stack = stack
        self._url = url
        self._monitor = monitor
        self._server = psutil.Process(pid)
        self.hosts: list[LabHost] = []

    async def start_hosts(self, role: str, parts: Sequence[tuple[int, int]], per_connection: int = 1) -> list[LabHost]:
        """Start a host for each of ``parts``: the first number and the count."""
        new_hosts = []
        for first, count in parts:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.bench.scale_lab.hosts", role, self._url, str(first), str(count),
                str(per_connection), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": PATHS},
            )  # fmt: skip
            new_hosts.append(LabHost(process, role))
            self._stack.push_async_callback(new_hosts[-1].stop)
        await asyncio.gather(*(host.read() for host in new_hosts))
        self.hosts += new_hosts
        return new_hosts

    def read_traffic(self) -> dict[str, int]:
        """Return the server's messages and bytes in and out so far."""
        with urllib.request.urlopen(f"{self._monitor}/varz", timeout=30) as answer:
            values = json.load(answer)
        return {name: values[name] for name in ("in_msgs", "out_msgs", "in_bytes", "out_bytes", "slow_consumers")}

    async def read_cpu(self) -> dict[str, float]:
        """Return the CPU seconds of each role."""
        times = self._server.cpu_times()
        cpu = {"nats": times.user + times.system}
        for host in self.hosts:
            if host.process.returncode is None:
                cpu[host.role] = cpu.get(host.role, 0.0) + await host.call("cpu")
        return cpu


@asynccontextmanager
async def start_lab() -> AsyncIterator[Lab]:
    """Start a NATS server for a lab."""
    async with AsyncExitStack() as stack:
        server = infra.prepare_nats(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        process = await asyncio.create_subprocess_exec(
            *server.spec.argv, env={**os.environ, **server.spec.env}, cwd=server.spec.cwd
        )

        async def stop() -> None:
            process.kill()
            await process.wait()

        stack.push_async_callback(stop)
        async with asyncio.timeout(30):
            await infra.nats_ready(server.ports[1])
        yield Lab(stack, server.url, f"http://127.0.0.1:{server.ports[1]}", process.pid)


def _split(count: int, most: int, first: int = 0) -> list[tuple[int, int]]:
    """Split ``count`` numbers from ``first`` on into parts of at most ``most``."""
    return [(first + at, min(most, count - at)) for at in range(0, count, most)]


async def _measure_rates(lab: Lab, executors: int, gateways: int) -> dict[str, float]:
    """Return rates per second, and the deliveries per executor and heartbeat."""
    await asyncio.sleep(_SETTLE_SECONDS)
    began, traffic, cpu = time.monotonic(), lab.read_traffic(), await lab.read_cpu()
    await asyncio.sleep(_MEASURE_SECONDS)
    now, later = lab.read_traffic(), await lab.read_cpu()
    seconds = time.monotonic() - began
    rates = {name: (now[name] - traffic[name]) / seconds for name in now}
    beats = executors / EXECUTOR_HEARTBEAT_SECONDS
    figures = {
        "executors": executors, "gateways": gateways, "deliveries": rates["out_msgs"] / beats,
        "in_msgs": rates["in_msgs"], "out_msgs": rates["out_msgs"], "out_bytes": rates["out_bytes"],
        **{f"cpu_{role}": 1000 * (later[role] - cpu[role]) / seconds for role in cpu},
    }  # fmt: skip
    _report(
        f"{executors} executors, {gateways} gateways: {rates['in_msgs']:,.0f} msg/s in, {rates['out_msgs']:,.0f} out, "
        f"{rates['out_bytes'] / 1e6:.2f} MB/s out, {figures['deliveries']:.2f} deliveries per heartbeat; CPU ms/s: "
        + ", ".join(f"{role} {1000 * (later[role] - cpu[role]) / seconds:.0f}" for role in cpu)
    )
    return figures


async def _lose_node(lab: Lab, first: int, others: int, gateways: Sequence[LabHost], how: signal.Signals) -> float:
    """Return the seconds until all gateways notice that a node of executors was lost."""
    [node] = await lab.start_hosts("executors", [(first, PER_NODE)])
    await asyncio.gather(*(host.call("ready", count=others + PER_NODE) for host in gateways))
    await asyncio.sleep(2.0)
    lab.hosts.remove(node)
    ids = [f"lab-{number}" for number in range(first, first + PER_NODE)]
    began = time.monotonic()
    node.process.send_signal(how)
    noticed = await asyncio.gather(*(host.call("lost", ids=ids) for host in gateways))
    await node.stop()
    return float(max(noticed)) - began


async def measure_plane(executors: int, gateways: int, per_connection: int) -> dict[str, float]:
    """Measure heartbeats, the start of all executors, and a lost node."""
    async with start_lab() as lab:
        few = await lab.start_hosts("gateways", [(0, 2)])
        began = time.monotonic()
        await lab.start_hosts("executors", _split(executors, -(-executors // _PROCESSES)), per_connection)
        ready = await asyncio.gather(*(host.call("ready", count=executors) for host in few))
        all_ready = max(ready) - began
        _report(f"all of {executors} executors known after {all_ready:.1f} s")
        small = await _measure_rates(lab, executors, 2)
        begin = lab.read_traffic()["out_msgs"]
        many = [*few, *await lab.start_hosts("gateways", _split(gateways - 2, _GATEWAYS_PER_PROCESS, 2))]
        await asyncio.gather(*(host.call("ready", count=executors) for host in many))
        _report(
            f"{gateways - 2} more gateways know all executors after {lab.read_traffic()['out_msgs'] - begin:,} deliveries"
        )
        large = await _measure_rates(lab, executors, gateways)
        lost = await _lose_node(lab, executors, executors, many, signal.SIGKILL)
        frozen = await _lose_node(lab, executors + PER_NODE, executors, many, signal.SIGSTOP)
        _report(f"a lost node was noticed after {lost:.2f} s, a frozen one after {frozen:.2f} s")
        fit = [count for host in many for count in await host.call("fit")]
        _report(f"gateways with all executors fit at the end: {sum(count == executors for count in fit)} of {len(fit)}")
    return {
        BEATS: round(large["deliveries"] / small["deliveries"], 3),
        LOST_NODE: round(lost, 2),
        FROZEN_NODE: round(frozen, 2),
        ALL_READY: round(all_ready, 1),
    }


async def _measure_chat(lab: Lab, chat: LabHost) -> float:
    """Return the CPU milliseconds of a chat in all processes, less those of the idle system."""
    began, before = time.monotonic(), await lab.read_cpu()
    await asyncio.sleep(2.0)
    idle_seconds, idle = time.monotonic() - began, await lab.read_cpu()
    began = time.monotonic()
    await chat.call("chats", count=_CHATS)
    seconds, after = time.monotonic() - began, await lab.read_cpu()
    rate = sum(idle.values()) - sum(before.values())
    return 1000 * (sum(after.values()) - sum(idle.values()) - rate * seconds / idle_seconds) / _CHATS


async def measure_chats(executors: int, per_connection: int) -> dict[str, float]:
    """Measure a chat with 16 executors and with ``executors``, in turns."""
    async with start_lab() as small, start_lab() as large:
        chats = []
        for lab, count in ((small, 16), (large, executors)):
            chats += await lab.start_hosts("chat", [(0, 1)])
            await lab.start_hosts("executors", _split(count, -(-count // _PROCESSES)), per_connection)
            await chats[-1].call("ready", count=count)
            await chats[-1].call("chats", count=_CHATS)
        costs = [(await _measure_chat(small, chats[0]), await _measure_chat(large, chats[1])) for _ in range(_ROUNDS)]
    for few, many in costs:
        _report(f"CPU of a chat: {few:.3f} ms with 16 executors, {many:.3f} with {executors}")
    ratios = sorted(many / few for few, many in costs)
    return {TEXT_1000: round(ratios[_ROUNDS // 2], 3)}


async def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale_lab")
    parser.add_argument("--executors", type=int, default=1000)
    parser.add_argument("--gateways", type=int, default=16)
    parser.add_argument("--per-connection", type=int, default=1, help="executors that share a connection to the bus")
    parser.add_argument("--only", choices=("plane", "chats"), help="measure heartbeats and nodes, or chats")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    if options.only != "chats":
        figures |= await measure_plane(options.executors, options.gateways, options.per_connection)
    if options.only != "plane":
        figures |= await measure_chats(options.executors, options.per_connection)
    print(json.dumps(figures))


if __name__ == "__main__":
    asyncio.run(_main())
