"""The load generator: keep-alive connections that each send the next request immediately.

    python -m tests.bench.client < load

It runs in its own process and reads one line of JSON (``Load``). It sends the warm-up requests, writes ``warm``, and
waits for a line. Then it sends the measured requests and writes one line of JSON (``Done``). It reads every answer
completely and compares it with the expected one. The first difference ends the process with an error.
"""

import asyncio
import base64
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import uvloop

from tests.bench import bodies

_WITHIN = 120.0  # seconds for one lot of requests


class Load(msgspec.Struct, frozen=True):
    """Requests to send: ``template`` as in ``bodies``, on ``connections`` connections at once."""

    port: int
    path: str
    template: bytes
    connections: int
    warm: int
    count: int
    kind: Literal["echo", "text", "chat", "speech", "stream"]
    tokens: int = 1
    more_ports: tuple[int, ...] = ()  # of other gateways, which get as many connections each


class Done(msgspec.Struct, frozen=True):
    """Results: seconds for all requests, median milliseconds of one."""

    requests: int
    seconds: float
    median_ms: float


class _Connection(asyncio.Protocol):
    def __init__(self, load: Load) -> None:
        self._load = load
        self._head = (
            b"POST %b HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            % (
                load.path.encode(),
                len(bodies.fill_template(load.template, bodies.FIRST)),
            )
        )
        self._finished = asyncio.get_running_loop().create_future()
        self._finished.set_result(None)

    async def run(self, seeds: Iterator[int], times: list[float]) -> None:
        """Send requests in sequence until ``seeds`` are used up."""
        self._seeds, self._times = seeds, times
        self._finished = asyncio.get_running_loop().create_future()
        self._send_next()
        await self._finished

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._set_error(error or ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            body = _read_body(self._buffer)
            if body is not None:
                _check_answer(body, self._seed, self._load)
        except (ValueError, LookupError, msgspec.MsgspecError) as error:
            self._set_error(ValueError(f"request {self._seed}: {error}: {bytes(self._buffer[:2000])!r}"))
            return
        if body is not None:
            self._times.append(time.perf_counter() - self._begun)
            self._send_next()

    def _send_next(self) -> None:
        self._buffer = bytearray()
        self._seed = next(self._seeds, 0)
        if not self._seed:
            self._finished.set_result(None)
            return
        self._begun = time.perf_counter()
        self.transport.write(self._head + bodies.fill_template(self._load.template, self._seed))

    def _set_error(self, error: Exception) -> None:
        if not self._finished.done():
            self._finished.set_exception(error)


def _read_body(data: bytearray) -> bytes | None:
    """Return the complete body of the response. Raises ``ValueError`` unless the status is 200."""
    head, separator, rest = data.partition(b"\r\n\r\n")
    if not separator:
        return None
    lines = bytes(head).lower().split(b"\r\n")
    if lines[0].split(b" ")[1] != b"200":
        raise ValueError(lines[0].decode())
    fields = dict(line.split(b": ", 1) for line in lines[1:])
    if b"content-length" in fields:
        return bytes(rest) if len(rest) == int(fields[b"content-length"]) else None
    return _join_chunks(bytes(rest)) if rest.endswith(b"\r\n0\r\n\r\n") else None


def _join_chunks(data: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while True:
        end = data.index(b"\r\n", at)
        size = int(data[at:end], 16)
        if not size:
            return b"".join(parts)
        parts.append(data[end + 2 : end + 2 + size])
        at = end + 2 + size + 2


def _check_answer(body: bytes, seed: int, load: Load) -> None:
    actual: Any
    reference: Any
    if load.kind == "echo":
        actual, reference = msgspec.json.decode(body)["seed"], seed
    elif load.kind == "text":
        actual = msgspec.json.decode(body)["choices"][0]["message"]["content"]
        reference = "".join(bodies.make_answer(seed, load.tokens))
    elif load.kind in ("chat", "speech"):
        message = msgspec.json.decode(body)["choices"][0]["message"]
        text = "".join(bodies.make_answer(seed, load.tokens))
        actual, reference = (message["content"], message["audio"]["transcript"]), (text, text)
        if load.kind == "speech":
            actual, reference = (
                (*actual, _read_levels(message["audio"]["data"])),
                (*reference, (bodies.RATE, {bodies.compute_level(seed)})),
            )
    else:
        actual, reference = _read_stream(body), bodies.make_answer(seed, load.tokens)
    if actual != reference:
        raise ValueError(f"the answer is {actual!r}, not {reference!r}")


def check_stream(response: bytes | bytearray, seed: int, tokens: int) -> None:
    """Check that ``response`` is the whole stream of ``tokens`` for request ``seed``.

    Raises ``ValueError`` otherwise.
    """
    body = _read_body(bytearray(response))
    texts = _read_stream(body) if body is not None else []
    if texts != bodies.make_answer(seed, tokens):
        raise ValueError(f"the answer is {texts!r}")


def _read_levels(data: str) -> tuple[int, set[int]]:
    """Count the 16-bit samples, and return some of their distinct values."""
    samples = memoryview(base64.b64decode(data)).cast("h")
    return len(samples), {*samples[:: bodies.CODE_SAMPLES], samples[-1]}


def _read_stream(body: bytes) -> list[str]:
    """Tokens of a stream, one per event. Raises ``ValueError`` if its end is wrong."""
    events = body.decode().split("\n\n")
    if events[-2:] != ["data: [DONE]", ""]:
        raise ValueError("the stream did not end with [DONE]")
    choices = [msgspec.json.decode(event[6:])["choices"] for event in events[:-2]]
    return [text for choice in choices for part in choice if (text := part["delta"].get("content"))]


async def _send_all(crowd: list[_Connection], seeds: Iterator[int], times: list[float]) -> float:
    start_time = time.perf_counter()
    async with asyncio.timeout(_WITHIN):
        await asyncio.gather(*(connection.run(seeds, times) for connection in crowd))
    return time.perf_counter() - start_time


async def _run_load(load: Load, first: int) -> None:
    loop = asyncio.get_running_loop()
    ports = (load.port, *load.more_ports)
    pairs = [
        await loop.create_connection(lambda: _Connection(load), "127.0.0.1", ports[number % len(ports)])
        for number in range(load.connections)
    ]
    crowd = [connection for _, connection in pairs]
    await _send_all(crowd, iter(range(first, first + load.warm)), [])
    print("warm", flush=True)
    sys.stdin.buffer.readline()  # nothing else runs here
    times: list[float] = []
    seconds = await _send_all(crowd, iter(range(first + load.warm, first + load.warm + load.count)), times)
    result = Done(len(times), seconds, 1000 * statistics.median(times))
    print(msgspec.json.encode(result).decode(), flush=True)


def main() -> None:
    load = msgspec.json.decode(sys.stdin.buffer.readline(), type=Load)
    # Another process must not send the same numbers again: equal images would be cached only once.
    first = bodies.FIRST + time.time_ns() // 1_000_000 % (bodies.LAST - bodies.FIRST - load.warm - load.count)
    uvloop.run(_run_load(load, first))


if __name__ == "__main__":
    main()
