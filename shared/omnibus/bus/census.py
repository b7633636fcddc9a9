"""Census: processes report their status at once, to the asker alone.

A census names the kinds of processes that must answer. Its reply-to is the prefix of the subjects of the answers, so
that a start of one gateway among many costs as many messages as there are processes. A census without a reply-to, as
people and earlier builds send it, is answered to all, as a heartbeat.
"""

import secrets

import msgspec

from omnibus.bus import Bus, Delivery, subjects
from omnibus.graph import WIRE_VERSION


class CensusRequest(msgspec.Struct, frozen=True):
    """Request for the status of processes. ``kinds`` are those of their events; all if empty."""

    kinds: tuple[str, ...] = ()
    v: int = WIRE_VERSION


class Census:
    """Asks processes of ``kinds`` for their status. Pass it to ``omnibus.cluster.presence.follow_events``."""

    def __init__(self, bus: Bus, *kinds: str) -> None:
        self._bus = bus
        self.kinds = kinds
        self._body = msgspec.json.encode(CensusRequest(kinds))
        self._reply = subjects.census_subject(secrets.token_hex(8))

    def answer_subject(self, kind: str) -> str:
        """Return the subject on which processes of ``kind`` answer."""
        return f"{self._reply}.{kind}"

    def ask(self) -> None:
        """Publish the request. Raises ``BusUnavailable``."""
        self._bus.publish(subjects.event_subject(subjects.CENSUS), self._body, reply=self._reply)


def find_answer_subject(census: Delivery, kind: str) -> str:
    """Return the subject of the answer of a process of ``kind``; empty if ``census`` does not ask for it."""
    try:
        kinds = msgspec.json.decode(census.data, type=CensusRequest).kinds
    except msgspec.MsgspecError:  # of a person, or another build
        kinds = ()
    if kinds and kind not in kinds:
        return ""
    is_private = census.reply.startswith(subjects.census_subject(""))
    return f"{census.reply}.{kind}" if is_private else subjects.event_subject(kind)
