"""Reader of the last log lines of the processes of ``omnibus up``."""

import asyncio
import os
from pathlib import Path
from typing import Any

from omnibus.errors import NotFound

#: Size of the end of the file that is read, in bytes.
TAIL_BYTES = 2 << 20
#: Limit of the lines of one answer.
MAX_LINES = 1000


async def read_log_tail(path: str, process: str, lines: int) -> dict[str, Any]:
    """Return the last ``lines`` of ``process`` and the names of all processes.

    If ``process`` is "", all lines match. It also matches replicas: those of ``m/Th`` are ``m/Th/1`` and so on. Raises
    ``NotFound`` with the place of the logs if the gateway has no log file.
    """
    if not path:
        raise NotFound(
            "this gateway has no log file: `kubectl logs` or `docker compose logs` shows the logs of each container"
        )
    try:
        text = await asyncio.to_thread(_read_tail, Path(path))
    except OSError as error:
        raise NotFound(f"the log file of OMNIBUS_GATEWAY_LOG_FILE cannot be read: {error.strerror}") from error
    named_lines = [(line.split(" ", 1)[0], line) for line in text.splitlines() if line.strip()]
    matches = [line for name, line in named_lines if not process or name == process or name.startswith(f"{process}/")]
    return {"processes": sorted({name for name, _ in named_lines}), "lines": matches[-lines:]}


def _read_tail(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        body = file.read(TAIL_BYTES)
    if size > TAIL_BYTES:  # it begins within a line
        body = body.partition(b"\n")[2]
    return body.decode(errors="replace")
