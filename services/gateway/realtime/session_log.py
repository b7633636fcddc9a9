"""The log of one session while this gateway holds it: what happened is on the bus before its client sees it."""

import logging
import time
from collections.abc import Sequence

from omnibus.bus import Bus, subjects
from omnibus.errors import BusUnavailable, Conflict, Overloaded
from omnibus.recording.line_log import LineAssembler, LineWriter
from omnibus.recording.sessions import SessionEntries, SessionEntry, encode_entries, read_session
from services.gateway.tenancy.log_budget import LogBudget
from services.gateway.tenancy.tenant import current_tenant

log = logging.getLogger(__name__)

#: Times that a log is read once more because who had the session has written to it meanwhile.
MAX_CLAIMS = 50


class SessionLog:
    """Writes the entries of session ``id`` behind those that are ``known``, within the ``budget`` of its tenant."""

    def __init__(self, bus: Bus, id: str, known: LineAssembler | None = None, budget: LogBudget | None = None) -> None:
        self._budget = budget or LogBudget()
        self._tenant = current_tenant().name
        self._id = id
        self._writer = LineWriter(bus, subjects.RESPONSES, subjects.response_subject(subjects.subject_token(id)), known)
        self._is_lost = False

    async def append(self, entries: Sequence[SessionEntry]) -> None:
        """Write ``entries``: all of them hold, or none. Raises ``Conflict`` when another connection has the session.

        Without a bus, or when its tenant has written its share of events, the session goes on as one that cannot be
        resumed: a gap in its log would be taken for the truth.
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
            log.warning("%s cannot be resumed any more: %s", self._id, error)


async def claim_log(bus: Bus, id: str, known: SessionEntries, budget: LogBudget | None = None) -> SessionLog:
    """The log of session ``id`` for who goes on with it, behind an entry by which whoever had it can write no more.

    A connection that broke may not have ended where it was: what it writes until then is added to ``known``.
    Raises ``Conflict`` if it writes faster than the log can be read, ``BusUnavailable`` and ``ProtocolError``.
    """
    for _ in range(MAX_CLAIMS):
        found = SessionLog(bus, id, known, budget)
        try:
            await found.append([SessionEntry(at=time.time())])
        except Conflict:
            await read_session(bus, id, known)
        else:
            return found
    raise Conflict("another connection writes to this session without a pause: close it, and resume the session again")
