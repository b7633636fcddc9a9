"""A NATS server and a Valkey (or Redis) server of our own, on loopback: command lines and readiness."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from omnibus.up import binaries
from omnibus.up.ports import LOOPBACK, free_ports
from omnibus.up.spec import ProcessSpec

_READY_WITHIN = 15.0  # seconds; both take under 0.3 s on an idle machine
_PROBE_TIMEOUT = 1.0  # seconds for one probe
_PROBE_PAUSE = 0.02  # seconds between two probes
_ANSWER = 4096  # bytes of an answer that a probe reads


@dataclass(frozen=True)
class Server:
    """A server that is not started yet. ``ports`` stay the same over restarts."""

    spec: ProcessSpec
    url: str
    ports: tuple[int, ...]
    monitor: str = ""  # base URL of the NATS monitoring endpoint


def nats(
    directory: Path,
    *,
    port: int = 0,
    monitor_port: int = 0,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Server:
    """A NATS server with JetStream, whose streams live under ``directory``; port 0 takes a free one.

    ``config`` is a NATS configuration file for users and permissions. Raises ``BusUnavailable`` when no
    server binary is found.
    """
    binary = binaries.find(binaries.NATS, environ)
    port, monitor_port = _ports(port, monitor_port)
    store = directory.resolve() / "nats"
    store.mkdir(parents=True, exist_ok=True)
    listen = ("-a", LOOPBACK, "-p", str(port), "-m", str(monitor_port))
    files = ("-sd", str(store), "-l", str(store / "server.log"), *(("-c", str(config)) if config else ()))
    argv = (str(binary), "-js", *listen, *files)
    spec = ProcessSpec("nats", argv, cwd=store, ready=partial(nats_ready, monitor_port), ready_within=_READY_WITHIN)
    return Server(spec, f"nats://{LOOPBACK}:{port}", (port, monitor_port), f"http://{LOOPBACK}:{monitor_port}")


def valkey(directory: Path, *, port: int = 0, environ: Mapping[str, str] | None = None) -> Server:
    """A Valkey or Redis server that keeps everything in memory; port 0 takes a free one.

    Raises ``StoreUnavailable`` when no server binary is found.
    """
    binary = binaries.find(binaries.VALKEY, environ)
    (port,) = _ports(port)
    store = directory.resolve() / "valkey"
    store.mkdir(parents=True, exist_ok=True)
    listen = ("--bind", LOOPBACK, "--port", str(port), "--dir", str(store))
    argv = (str(binary), *listen, "--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "warning")
    spec = ProcessSpec("valkey", argv, cwd=store, ready=partial(valkey_ready, port), ready_within=_READY_WITHIN)
    return Server(spec, f"redis://{LOOPBACK}:{port}/0", (port,))


async def nats_ready(monitor_port: int) -> None:
    """Wait until the NATS server reports itself healthy: clients served and JetStream recovered."""
    await _until_answer(monitor_port, b"GET /healthz HTTP/1.0\r\n\r\n", (b"HTTP/1.0 200", b"HTTP/1.1 200"))


async def valkey_ready(port: int) -> None:
    """Wait until the server answers PING; a refusal for want of a password is an answer too."""
    await _until_answer(port, b"PING\r\n", (b"+PONG", b"-NOAUTH"))


def _ports(*asked: int) -> list[int]:
    free = iter(free_ports(len(asked)))
    return [port or next(free) for port in asked]


async def _until_answer(port: int, request: bytes, wanted: tuple[bytes, ...]) -> None:
    # Neither server can tell us that it is ready, so we ask; the caller holds the deadline.
    while not (await _ask(port, request)).startswith(wanted):  # noqa: ASYNC110
        await asyncio.sleep(_PROBE_PAUSE)


async def _ask(port: int, request: bytes) -> bytes:
    """The first bytes that 127.0.0.1:``port`` answers to ``request``; empty when there is no answer."""
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                writer.write(request)
                return await reader.read(_ANSWER)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""
