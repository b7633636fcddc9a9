"""Memory of this process, of this machine, and of the control groups around the process."""

import os
from pathlib import Path

_STATM = Path("/proc/self/statm")
_MEMINFO = Path("/proc/meminfo")
#: The control groups of this process, and the file system of all groups.
GROUPS = Path("/proc/self/cgroup")
GROUP_ROOT = Path("/sys/fs/cgroup")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Return this process's main memory in bytes, including shared memory. 0 if the system does not report it."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:  # not Linux
        return 0


def available_bytes(meminfo: Path = _MEMINFO, groups: Path = GROUPS, root: Path = GROUP_ROOT) -> int | None:
    """Return the bytes of main memory that new processes may use, within control groups; None if unknown.

    File caches count as free: the kernel evicts them.
    """
    kib = next((line.split()[1] for line in _read_lines(meminfo) if line.startswith("MemAvailable:")), None)
    machine_bytes = [int(kib) << 10] if kib is not None else []
    return min([*machine_bytes, *free_group_bytes(groups, root)], default=None)


def free_group_bytes(groups: Path = GROUPS, root: Path = GROUP_ROOT) -> list[int]:
    """Return the bytes below the limit of each control group (version 2) that has one."""
    return [left for path in _group_directories(groups, root) if (left := _free_bytes(path)) is not None]


def memory_limit(groups: Path = GROUPS, root: Path = GROUP_ROOT) -> int | None:
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
    lines = _read_lines(groups)
    if not lines:
        return []
    own = next((line.split(":", 2)[2] for line in lines if line.startswith("0:")), "/")
    parts = [part for part in own.split("/") if part]
    return [root.joinpath(*parts[:count]) for count in range(len(parts) + 1)]


def _read_number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such group, or "max"
        return None


def _read_lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
