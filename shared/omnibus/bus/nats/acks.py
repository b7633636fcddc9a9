"""Records that JetStream acknowledges in the background: refused ones are sent again, then counted.

All acknowledgements arrive on one subscription, so that a record needs one more small message and no task.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from itertools import count
from typing import Any

from msgspec import Struct

from omnibus.bus import Delivery
from omnibus.errors import OmnibusError

log = logging.getLogger(__name__)

#: Seconds until a record without acknowledgement is sent again, and the most sends of a record.
RESEND_SECONDS = 2.0
MAX_SENDS = 3
#: The same for several servers, which take some seconds to elect a leader after a loss.
MAX_CLUSTER_SENDS = 10
#: Bytes of records that are kept to be sent again. A record beyond that is sent once.
MAX_UNACKED_BYTES = 32 << 20
#: Seconds that closing waits for pending acknowledgements.
SETTLE_SECONDS = 2.0

#: Publishes data on a subject with headers and a reply subject.
Publish = Callable[[str, bytes, str, dict[str, str]], None]


class _Sent(Struct):
    """One record in flight. ``at`` is the loop's time of its last send; ``size`` is 0 if ``data`` is not kept."""

    subject: str
    data: bytes
    id: str
    at: float
    size: int
    sends: int = 1


class RecordAcks:
    """Sends records with ``publish`` and matches the acknowledgements on ``inbox``; ``lost`` counts lost records."""

    def __init__(self, publish: Publish, inbox: str, clustered: bool = False) -> None:
        self.lost = 0
        self.pattern = f"{inbox}.*"
        self._publish = publish
        self._prefix = f"{inbox}."
        self._clustered = clustered
        self._numbers = count()
        self._sent: dict[str, _Sent] = {}  # by the reply subject, oldest first
        self._held_bytes = 0
        self._why = "no answer"
        self._losing = False
        self._timer: asyncio.TimerHandle | None = None
        self._settled = asyncio.Event()

    # The hot path

    def send(self, subject: str, data: bytes, id: str) -> None:
        """Publish one record. Raises the ``OmnibusError`` of publishing; the record is then lost."""
        loop = asyncio.get_running_loop()
        fits = self._held_bytes + len(data) <= MAX_UNACKED_BYTES
        record = _Sent(subject, data if fits else b"", id, loop.time(), len(data) if fits else 0)
        try:
            self._send_record(f"{self._prefix}{next(self._numbers)}", record)
        except OmnibusError as error:
            self._count_lost(str(error))
            raise
        self._held_bytes += record.size
        if self._timer is None:
            self._timer = loop.call_later(RESEND_SECONDS, self._resend_overdue)

    def handle_ack(self, delivery: Delivery) -> None:
        """Handle one answer of JetStream."""
        if delivery.refused:
            self._why = "no stream takes them"
        elif b'"error"' in delivery.data:
            self._why = _error_description(delivery.data)
        else:
            self._remove_acked(delivery.subject)
        # A refused record is sent again later: a full disk may have room again.

    def _remove_acked(self, reply: str) -> None:
        record = self._sent.pop(reply, None)
        if record is None:
            return
        self._held_bytes -= record.size
        if not self._sent:
            self._settled.set()
        if self._losing:
            self._losing = False
            log.warning("JetStream stores records again; %d were lost so far", self.lost)

    # Once in a while

    async def wait_for_acks(self) -> None:
        """Wait a moment for pending acknowledgements."""
        if self._sent:
            self._settled.clear()
            try:
                async with asyncio.timeout(SETTLE_SECONDS):
                    await self._settled.wait()
            except TimeoutError:
                log.warning("%d records were not acknowledged before closing", len(self._sent))
        if self._timer is not None:
            self._timer.cancel()

    def _send_record(self, reply: str, record: _Sent) -> None:
        # Each send has the same reply subject: a late acknowledgement still belongs to the record.
        self._publish(record.subject, record.data, reply, {"Nats-Msg-Id": record.id})
        self._sent[reply] = record

    def _resend_overdue(self) -> None:
        """Send overdue records again, or drop them."""
        loop = asyncio.get_running_loop()
        self._timer = None
        late = loop.time() - RESEND_SECONDS
        overdue = []
        for reply, record in self._sent.items():
            if record.at > late:
                break
            overdue.append(reply)
        for reply in overdue:
            self._resend_or_drop(reply, self._sent.pop(reply), loop.time())
        if self._sent:
            self._timer = loop.call_later(RESEND_SECONDS / 2, self._resend_overdue)
        else:
            self._settled.set()

    def _resend_or_drop(self, reply: str, record: _Sent, now: float) -> None:
        most = max(MAX_SENDS, MAX_CLUSTER_SENDS) if self._clustered else MAX_SENDS
        if record.sends < most and record.size:
            record.sends, record.at = record.sends + 1, now
            try:
                self._send_record(reply, record)
            except OmnibusError as error:
                self._why = str(error)
            else:
                return
        self._held_bytes -= record.size
        self._count_lost(self._why)

    def _count_lost(self, why: str) -> None:
        self.lost += 1
        if not self._losing:
            self._losing = True
            log.error("records are lost (%s); check NATS, its disk and its log. Requests are still served", why)


def _error_description(answer: bytes) -> str:
    """Return JetStream's own description of the error."""
    try:
        problem: Any = json.loads(answer)["error"]
        return str(problem["description"])
    except (ValueError, KeyError, TypeError):
        return "JetStream sent an unreadable answer"
