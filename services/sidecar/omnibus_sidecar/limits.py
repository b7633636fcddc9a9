"""Memory limits of this machine and this process's control groups.

The sidecar allocates the pages of the arena, so they count against its limits.
"""

import logging
import os
from pathlib import Path

from omnibus.errors import ArenaFull, Fatal

log = logging.getLogger(__name__)

_GROUPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")
_MIB = 1 << 20


def check_arena_size(size: int, directory: str, groups: Path = _GROUPS, root: Path = _ROOT) -> None:
    """Raise ``Fatal`` if an arena of ``size`` bytes can never be filled: the kernel would kill the sidecar.

    Logs a warning if it cannot be filled now.
    """
    limit = memory_limit(groups, root)
    if limit is not None and size >= limit:
        raise Fatal(
            f"an arena of {size // _MIB} MiB does not fit into this container's memory limit of {limit // _MIB} MiB. "
            "Lower OMNIBUS_SIDECAR_ARENA_MIB, or raise the limit (mem_limit in compose, sidecar.resources in the chart)"
        )
    room = os.statvfs(directory)
    free = room.f_bavail * room.f_frsize
    if free < size:
        log.warning(
            "%s has %d MiB free now, but the arena may grow to %d MiB: tensors that do not fit will be rejected",
            directory, free // _MIB, size // _MIB,
        )  # fmt: skip


def require(nbytes: int, groups: Path = _GROUPS, root: Path = _ROOT) -> None:
    """Raise ``ArenaFull`` if ``nbytes`` more bytes would exceed a memory limit.

    The kernel would kill a process otherwise.
    """
    free = [left for path in _group_directories(groups, root) if (left := _free_bytes(path)) is not None]
    if free and min(free) < nbytes:
        raise ArenaFull(f"this container's memory limit leaves {min(free)} bytes, {nbytes} are needed")


def memory_limit(groups: Path = _GROUPS, root: Path = _ROOT) -> int | None:
    """Return the limit in bytes of the tightest control group (version 2); None without a limit."""
    limits = [
        limit for path in _group_directories(groups, root) if (limit := _read_number(path / "memory.max")) is not None
    ]
    return min(limits, default=None)


def _free_bytes(group: Path) -> int | None:
    """Return the bytes below the limit of ``group``; None without a limit.

    File caches do not count as used: the kernel evicts them.
    """
    limit, used_bytes = _read_number(group / "memory.max"), _read_number(group / "memory.current")
    if limit is None or used_bytes is None:
        return None
    try:
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        cached_bytes = int(stat["inactive_file"]) + int(stat["active_file"])
    except (OSError, ValueError, LookupError):
        cached_bytes = 0
    return limit - used_bytes + cached_bytes


def _group_directories(groups: Path, root: Path) -> list[Path]:
    """Return the directories of the group and of its ancestors, root first.

    A container sees its own group as the root.
    """
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
