"""Copies of videos from other gateways, for downloads from this one."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from omnibus.bus.media_messages import MediaAnswer
from omnibus.errors import NotFound, ProtocolError, storage_error
from omnibus.service import until_cancelled
from omnibus_gateway.media.peers import MediaPeers

#: Kind of videos between gateways, and the key of their expiry in answers: see ``expiry_time``.
VIDEO, UNTIL = "video", "until"
#: Suffix of incomplete files.
DRAFT = ".draft"


class VideoCopies:
    """Copies each file once for all its clients, with bounded memory.

    ``make_room`` is called with the size of each file before it is copied.
    """

    def __init__(self, peers: MediaPeers, make_room: Callable[[int], None]) -> None:
        self._peers = peers
        self._make_room = make_room
        self._running: dict[str, asyncio.Task[None]] = {}

    async def fetch_file(self, path: Path) -> bool:
        """Copy a file to ``path`` from a gateway that has its name; False if none has.

        Raises as ``MediaPeers.copy`` and ``make_room``, and ``StorageFull``. The copy continues if the client
        disconnects.
        """
        task = self._running.get(path.name)
        if task is None:
            task = self._running[path.name] = asyncio.get_running_loop().create_task(self._copy_file(path))
            task.add_done_callback(lambda _: self._running.pop(path.name, None))
        try:
            await asyncio.shield(task)
        except NotFound:
            return False
        return True

    async def expiry_time(self, name: str) -> float:
        """Return the Unix seconds until which another gateway keeps a file; 0 if none has it."""
        answer = await self._peers.find(VIDEO, name)
        return _expiry_time(answer) if answer is not None else 0.0

    async def close(self) -> None:
        for task in tuple(self._running.values()):
            await until_cancelled(task)

    async def _copy_file(self, path: Path) -> None:
        draft = path.with_name(f"{path.stem}.{token_hex(4)}{DRAFT}")
        try:
            with await asyncio.to_thread(_open_draft, draft) as file:

                def start(answer: MediaAnswer) -> None:
                    self._make_room(answer.nbytes)
                    file.seek(0)
                    file.truncate()

                answer = await self._peers.copy(VIDEO, path.name, start, file.write)
            until = _expiry_time(answer)
            await asyncio.to_thread(_complete_draft, draft, path, until)
        except OSError as error:
            raise storage_error("the media directory", error) from error
        finally:
            draft.unlink(missing_ok=True)


def _open_draft(path: Path) -> BinaryIO:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb")


def _complete_draft(draft: Path, path: Path, until: float) -> None:
    os.utime(draft, (until, until))
    draft.rename(path)


def _expiry_time(answer: MediaAnswer) -> float:
    until = answer.about.get(UNTIL)
    if not isinstance(until, int | float):
        raise ProtocolError(f"gateway {answer.gateway} does not report how long it keeps a video")
    return float(until)
