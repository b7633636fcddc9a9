"""The last lines that processes of ``omnibus up`` have written."""

import asyncio
import os
from pathlib import Path
from typing import Any

from omnibus.errors import NotFound

#: Bytes of the end of the file that are read.
TAIL_BYTES = 2 << 20
#: Lines that one answer may have.
MAX_LINES = 1000


async def read_log_tail(path: str, process: str, lines: int) -> dict[str, Any]:
    """The last ``lines`` of ``process``, or of all where it is empty, and the names of all that have written there.

    ``process`` also names its further replicas: those of ``m/Th`` are ``m/Th/1`` and so on. Raises ``NotFound`` where
    the gateway has no such file, with where logs are instead.
    """
    if not path:
        raise NotFound(
            "this gateway has no file with logs: `kubectl logs` or `docker compose logs` shows those of each container"
        )
    try:
        text = await asyncio.to_thread(_read_tail, Path(path))
    except OSError as error:
        raise NotFound(f"the file with logs, OMNIBUS_GATEWAY_LOG_FILE, cannot be read: {error.strerror}") from error
    named = [(line.split(" ", 1)[0], line) for line in text.splitlines() if line.strip()]
    found = [line for name, line in named if not process or name == process or name.startswith(f"{process}/")]
    return {"processes": sorted({name for name, _ in named}), "lines": found[-lines:]}


def _read_tail(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        body = file.read(TAIL_BYTES)
    if size > TAIL_BYTES:  # it begins within a line
        body = body.partition(b"\n")[2]
    return body.decode(errors="replace")
