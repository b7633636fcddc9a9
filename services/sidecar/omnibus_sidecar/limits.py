"""Memory limits of this machine and this process's control groups.

The sidecar allocates the pages of the arena, so they count against its limits.
"""

import logging
import os
from pathlib import Path

from omnibus.errors import ArenaFull, Fatal
from omnibus.process.memory import GROUP_ROOT, GROUPS, free_group_bytes, memory_limit

log = logging.getLogger(__name__)

_MIB = 1 << 20


def check_arena_size(size: int, directory: str, groups: Path = GROUPS, root: Path = GROUP_ROOT) -> None:
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


def require(nbytes: int, groups: Path = GROUPS, root: Path = GROUP_ROOT) -> None:
    """Raise ``ArenaFull`` if ``nbytes`` more bytes would exceed a memory limit.

    The kernel would kill a process otherwise.
    """
    free = free_group_bytes(groups, root)
    if free and min(free) < nbytes:
        raise ArenaFull(f"this container's memory limit leaves {min(free)} bytes, {nbytes} are needed")
