"""Recorded requests: invocations of the record stream, with the sizes from their ends."""

import time
from collections.abc import Collection

from omnibus.bus import Bus, subjects
from omnibus.errors import ProtocolError
from omnibus.graph import Invocation
from omnibus.profile import QUANTITIES
from omnibus.recording.records import EndRecord, decode_message
from omnibus_planner.simulate.arrivals import Arrival


async def recorded_arrivals(bus: Bus, models: Collection[str], seconds: float) -> list[Arrival]:
    """Return the requests of the last ``seconds`` to ``models``, oldest first. Raises ``BusUnavailable``.

    Segments after a request's first, replays, and calls over several models are left out.
    """
    since = time.time() - seconds
    invocations: dict[str, Invocation] = {}
    ends: dict[str, EndRecord] = {}
    for delivery in await bus.read_records(f"{subjects.ROOT}.inv.>"):
        try:
            invocation, end_record = decode_message(delivery.data)
        except ProtocolError:  # another build's
            continue
        if end_record is not None:
            ends[end_record.inv] = end_record
        if invocation is not None and _is_request(invocation, models, since):
            invocations.setdefault(invocation.id, invocation)
    requests = sorted(invocations.values(), key=lambda each: each.created)
    first = requests[0].created if requests else 0.0
    return [Arrival(each.created - first, each.model, each.type, _sizes(ends.get(each.id))) for each in requests]


def _is_request(invocation: Invocation, models: Collection[str], since: float) -> bool:
    """Return True for a separate, recent request to one of ``models``."""
    part = invocation.step or invocation.replay_of or invocation.attempt or "=" in invocation.type
    return not part and invocation.created >= since and invocation.model in models


def _sizes(end_record: EndRecord | None) -> dict[str, float]:
    """Return the sizes in the answer's usage; those of an unfinished request are drawn."""
    if end_record is None:
        return {}
    sizes = {name: float(value) for name, value in end_record.answer.usage.items() if name in QUANTITIES and value}
    if end_record.answer.audio_seconds:
        sizes["speech_seconds"] = end_record.answer.audio_seconds
    return sizes
