"""Requests as they were recorded: invocations of the record stream, with the sizes that their ends tell."""

import time
from collections.abc import Collection

from omnibus import graph
from omnibus.bus import Bus, subjects
from omnibus.errors import ProtocolError
from omnibus.graph import Invocation
from omnibus.profile import QUANTITIES
from omnibus.recording.records import EndRecord, decode_end, is_end
from services.planner.simulate.arrivals import Arrival


async def recorded_arrivals(bus: Bus, models: Collection[str], seconds: float) -> list[Arrival]:
    """Requests of the last ``seconds`` to ``models``, oldest first. Raises ``BusUnavailable``.

    Segments after a request's first, replays, and what several models run together are left out.
    """
    since = time.time() - seconds
    begun: dict[str, Invocation] = {}
    ends: dict[str, EndRecord] = {}
    for delivery in await bus.read_records(f"{subjects.ROOT}.inv.>"):
        try:
            if is_end(delivery.data):
                ended = decode_end(delivery.data)
                ends[ended.inv] = ended
            else:
                invocation = graph.decode_invocation(delivery.data)
                if invocation.created >= since and _is_request(invocation) and invocation.model in models:
                    begun.setdefault(invocation.id, invocation)
        except ProtocolError:  # another build's
            continue
    found = sorted(begun.values(), key=lambda each: each.created)
    first = found[0].created if found else 0.0
    return [Arrival(each.created - first, each.model, each.type, _sizes(ends.get(each.id))) for each in found]


def _is_request(invocation: Invocation) -> bool:
    return not (invocation.step or invocation.replay_of or invocation.attempt or "=" in invocation.type)


def _sizes(ended: EndRecord | None) -> dict[str, float]:
    """Sizes that the answer's usage tells; those of a request that did not end are drawn."""
    if ended is None:
        return {}
    found = {name: float(value) for name, value in ended.answer.usage.items() if name in QUANTITIES and value}
    if ended.answer.audio_seconds:
        found["speech_seconds"] = ended.answer.audio_seconds
    return found
