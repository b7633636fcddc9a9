"""The log of one session while this gateway holds it: what happened is on the bus before its client sees it."""

import logging
from collections.abc import Sequence

from omnibus.bus import Bus, subjects
from omnibus.errors import BusUnavailable
from omnibus.recording.line_log import LineAssembler, LineWriter
from omnibus.recording.sessions import SessionEntry, encode_entries

log = logging.getLogger(__name__)


class SessionLog:
    """Writes the entries of session ``id`` behind those that are ``known``."""

    def __init__(self, bus: Bus, id: str, known: LineAssembler | None = None) -> None:
        self._id = id
        self._writer = LineWriter(bus, subjects.RESPONSES, subjects.response_subject(subjects.subject_token(id)), known)
        self._is_lost = False

    async def append(self, entries: Sequence[SessionEntry]) -> None:
        """Write ``entries``: all of them hold, or none. Raises ``Conflict`` when another connection has the session.

        Without a bus the session goes on as one that cannot be resumed: a gap in its log would be taken for the truth.
        """
        if self._is_lost or not entries:
            return
        try:
            await self._writer.append_lines(encode_entries(entries) + b"\n")
        except BusUnavailable as error:
            self._is_lost = True
            log.warning("%s cannot be resumed any more: %s", self._id, error)
