"""Number of clients that one gateway can serve at the same time.

    python -m tests.bench.connections

    scale.idle_connection_kib   resident memory of the gateway for each of 10,000 connections that have sent nothing
    scale.idle_served           the part of these that are answered right when each sends a request at last
    scale.streams_right         the part of 2,000 streams at the same time, while the others are open, that have every
                                token in order and end as they must

The engine sends a token every half second, so all streams are open before the first one ends. The measurement checks
this. The process raises its descriptor limit to the hard limit, which must be at least 12,100.
"""

import asyncio
import json
import resource
import sys

import uvloop

from tests.bench import bodies
from tests.bench.cases import IDLE_KIB, IDLE_SERVED, STREAMS_RIGHT
from tests.bench.client import check_stream
from tests.bench.null import TOKEN_SECONDS
from tests.bench.system import BenchSystem, run_system

IDLE, STREAMS, TOKENS = 10_000, 2_000, 24
_NEEDED = IDLE + STREAMS + 100
_AT_ONCE = 200  # connections that are opened, or used, at the same time
_WITHIN = 150.0  # seconds for any of the steps
_ENV = {
    TOKEN_SECONDS: "0.5",
    "OMNIBUS_GATEWAY_MAX_INFLIGHT": str(2 * STREAMS),
    "OMNIBUS_EXECUTOR_CREDITS": str(2 * STREAMS),
    "OMNIBUS_EXECUTOR_BATCH": str(2 * STREAMS),
    "OMNIBUS_GATEWAY_HEAD_SECONDS": "300",
    "OMNIBUS_UP_SILENT": "60",  # a machine that does much else answers no probe in 8 s under such a burst
}
_PROBE = b"GET /health HTTP/1.1\r\nHost: bench\r\n\r\n"
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Streams:
    """Streams that are open now, and the most at any time."""

    def __init__(self) -> None:
        self.open = self.most = self.right = 0
        self.wrong = ""  # what is wrong with the first one that is

    async def open_stream(self, port: int, seed: int) -> None:
        body = bodies.fill_template(bodies.text_chat(TOKENS, stream=True), seed)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(head.encode() + body)
            data = bytearray(await reader.readuntil(b"\r\n\r\n"))
            data += await reader.readuntil(b"\n\n")
            self.open += 1
            self.most = max(self.most, self.open)
            data += await reader.readuntil(b"\r\n0\r\n\r\n")
            self.open -= 1
            check_stream(data, seed, TOKENS)
            self.right += 1
        except (OSError, EOFError, ValueError) as error:
            self.wrong = self.wrong or f"stream {seed}: {error!r:.500}"
        finally:
            writer.close()


async def _open_idle(port: int) -> list[Connection]:
    connections: list[Connection] = []
    while len(connections) < IDLE:
        connections += await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(_AT_ONCE)))
    return connections


async def _is_served(connection: Connection) -> bool:
    reader, writer = connection
    try:
        writer.write(_PROBE)
        head = await reader.readuntil(b"\r\n\r\n")
    except (OSError, EOFError):
        return False
    finally:
        writer.close()
    return b" 200 " in head.partition(b"\r\n")[0]


async def _count_served(idle: list[Connection]) -> int:
    served_count = 0
    for begin in range(0, len(idle), _AT_ONCE):
        served_count += sum(await asyncio.gather(*map(_is_served, idle[begin : begin + _AT_ONCE])))
    return served_count


async def _measure_system(system: BenchSystem) -> dict[str, float]:
    port, streams = system.stack.port, _Streams()
    await streams.open_stream(port, bodies.FIRST)  # what is loaded with the first request is no connection's
    before, pid, streams = system.memory_mib("gateway"), system.stack.pids["gateway"], _Streams()
    async with asyncio.timeout(_WITHIN):
        idle = await _open_idle(port)
        await asyncio.sleep(1.0)
    growth = system.memory_mib("gateway") - before
    async with asyncio.timeout(_WITHIN):
        await asyncio.gather(*(streams.open_stream(port, bodies.FIRST + 1 + number) for number in range(STREAMS)))
    async with asyncio.timeout(_WITHIN):
        served_count = await _count_served(idle)
    print(
        f"{growth:.1f} MiB for {IDLE} idle connections, {served_count} of them answered; {streams.right} of {STREAMS} streams "
        f"right, {streams.most} at the same time; then {system.memory_mib('gateway'):.0f} MiB {streams.wrong}",
        file=sys.stderr,
    )
    if system.stack.pids["gateway"] != pid:
        raise RuntimeError("the gateway fell over, and was started again")
    if streams.most < STREAMS == streams.right:
        raise RuntimeError(f"only {streams.most} of {STREAMS} streams were open at the same time")
    return {IDLE_KIB: growth * 1024 / IDLE, IDLE_SERVED: served_count / IDLE, STREAMS_RIGHT: streams.right / STREAMS}


async def measure_connections() -> dict[str, float]:
    """All values by name."""
    async with run_system(bodies.TEXT_MODEL, env=_ENV) as system:
        return {name: round(value, 4) for name, value in (await _measure_system(system)).items()}


def _raise_descriptors() -> None:
    """Raise the descriptor limit of this process and its children.

    The new limit is the kernel's maximum.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _NEEDED:
        sys.exit(f"{hard} open files are allowed, {_NEEDED} needed: raise the hard limit (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    _raise_descriptors()
    print(json.dumps(uvloop.run(measure_connections())))
