"""The memory that this machine and the control groups of this process allow: the sidecar takes the arena's pages."""

import logging
import os
from pathlib import Path

from omnibus.errors import ArenaFull, Fatal

log = logging.getLogger(__name__)

_GROUPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")
_MIB = 1 << 20


def check_arena_size(size: int, directory: str, groups: Path = _GROUPS, root: Path = _ROOT) -> None:
    """Raise ``Fatal`` when an arena of ``size`` bytes can never be filled: the kernel would end the sidecar.

    Warns when it could not be filled now.
    """
    limit = memory_limit(groups, root)
    if limit is not None and size >= limit:
        raise Fatal(
            f"an arena of {size // _MIB} MiB does not fit into this container's memory limit of {limit // _MIB} MiB: "
            "lower OMNIBUS_SIDECAR_ARENA_MIB, or raise the limit (mem_limit in compose, sidecar.resources in the chart)"
        )
    room = os.statvfs(directory)
    free = room.f_bavail * room.f_frsize
    if free < size:
        log.warning(
            "%s has %d MiB free now, the arena may grow to %d MiB: what does not fit then is refused",
            directory, free // _MIB, size // _MIB,
        )  # fmt: skip


def require(nbytes: int, groups: Path = _GROUPS, root: Path = _ROOT) -> None:
    """Raise ``ArenaFull`` when ``nbytes`` more bytes would make the kernel end a process for want of memory."""
    free = [left for path in _group_directories(groups, root) if (left := _free_bytes(path)) is not None]
    if free and min(free) < nbytes:
        raise ArenaFull(f"this container's memory limit leaves {min(free)} bytes, {nbytes} are needed")


def memory_limit(groups: Path = _GROUPS, root: Path = _ROOT) -> int | None:
    """Bytes that the tightest control group (version 2) of this process allows; None without a limit."""
    found = [
        limit for path in _group_directories(groups, root) if (limit := _read_number(path / "memory.max")) is not None
    ]
    return min(found, default=None)


def _free_bytes(group: Path) -> int | None:
    """Bytes below the limit of ``group``, caches of files not counted: they give way. None without a limit."""
    limit, used = _read_number(group / "memory.max"), _read_number(group / "memory.current")
    if limit is None or used is None:
        return None
    try:
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        cached = int(stat["inactive_file"]) + int(stat["active_file"])
    except (OSError, ValueError, LookupError):
        cached = 0
    return limit - used + cached


def _group_directories(groups: Path, root: Path) -> list[Path]:
    """The directories of the group and of those around it, the root's first: a container sees its own as the root."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return []
    own = next((line.split(":", 2)[2] for line in lines if line.startswith("0:")), "/")
    parts = [part for part in own.split("/") if part]
    return [root.joinpath(*parts[:count]) for count in range(len(parts) + 1)]


def _read_number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such group, or "max"
        return None
