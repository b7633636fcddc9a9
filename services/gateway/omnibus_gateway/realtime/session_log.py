"""Log of one session at this gateway: each change is on the bus before its client receives it."""

import logging
import time
from collections.abc import Sequence

from omnibus.bus import Bus, subjects
from omnibus.errors import BusUnavailable, Conflict, Overloaded
from omnibus.recording.line_log import LineAssembler, LineWriter
from omnibus.recording.sessions import SessionEntries, SessionEntry, encode_entries, read_session
from omnibus_gateway.tenancy.log_budget import LogBudget
from omnibus_gateway.tenancy.tenant import current_tenant

log = logging.getLogger(__name__)

#: Reads of a log for one claim: the previous connection may write to it at the same time.
MAX_CLAIMS = 50


class SessionLog:
    """Writer of the log of session ``id``, after the ``known_lines`` entries."""

    def __init__(
        self, bus: Bus, id: str, known_lines: LineAssembler | None = None, budget: LogBudget | None = None
    ) -> None:
        self._budget = budget or LogBudget()
        self._tenant = current_tenant().name
        self._id = id
        self._writer = LineWriter(
            bus, subjects.RESPONSES, subjects.response_subject(subjects.subject_token(id)), known_lines
        )
        self._is_lost = False

    async def append(self, entries: Sequence[SessionEntry]) -> None:
        """Write ``entries``, all or none. Raises ``Conflict`` if another connection has the session.

        If the bus is unavailable or the tenant's budget is spent, the session continues but can no longer be resumed.
        A log with a gap would restore a wrong state.
        """
        if self._is_lost or not entries:
            return
        data = encode_entries(entries) + b"\n"
        try:
            self._budget.check_room(self._tenant)
            self._budget.count(self._tenant, len(data))
            await self._writer.append_lines(data)
        except (BusUnavailable, Overloaded) as error:
            self._is_lost = True
            log.warning("%s can no longer be resumed: %s", self._id, error)


async def claim_log(bus: Bus, id: str, session_entries: SessionEntries, budget: LogBudget | None = None) -> SessionLog:
    """Take over the log of session ``id``: the entry written here stops the previous connection.

    The previous connection may still be running. Its entries up to the new one are added to ``session_entries``.
    Raises ``Conflict`` if it writes faster than the log can be read, ``BusUnavailable`` and ``ProtocolError``.
    """
    for _ in range(MAX_CLAIMS):
        session_log = SessionLog(bus, id, session_entries, budget)
        try:
            await session_log.append([SessionEntry(at=time.time())])
        except Conflict:
            await read_session(bus, id, session_entries)
        else:
            return session_log
    raise Conflict("another connection writes to this session without a pause: close it, and resume the session again")
