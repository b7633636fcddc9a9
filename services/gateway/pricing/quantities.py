"""Sizes of a request in the quantities of profiles: estimates when it comes, and what its answer tells."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omnibus.profile import QUANTITIES
from services.gateway.dispatch.streams import ResultStream

#: What one request may claim of a quantity: it comes from engines, which may be an app's own code.
MAX_QUANTITY = 1 << 32

#: Quantities of a request as they are estimated on arrival, by their places in ``QUANTITIES``.
Estimates = Sequence[tuple[int, float]]

#: Sizes by which the seconds of a stage are predicted: quantities, and the work of the stage's nodes as its composite
#: task estimates it, which alone counts for requests that are no chats.
SIZES = (*QUANTITIES, "work")
WORK = len(QUANTITIES)

_QUANTITY_INDEX = {name: place for place, name in enumerate(QUANTITIES)}
_SPEECH_INDEX = _QUANTITY_INDEX["speech_seconds"]


def apply_estimates(sizes: list[float], estimates: Estimates) -> None:
    """Set ``sizes`` to what was estimated of them, of which each medium has a part."""
    for place, _ in estimates:
        sizes[place] = 0.0
    for place, value in estimates:
        sizes[place] += value


def add_quantities(sums: list[float], streams: Iterable[ResultStream]) -> None:
    """Add what ``streams`` tell of their request: tokens as its thinker counted them, seconds of sound."""
    for stream in streams:
        usage = stream.closing.get("usage")
        if type(usage) is dict:
            for name, value in usage.items():
                place = _QUANTITY_INDEX.get(name)
                if place is not None and type(value) is int and 0 < value < MAX_QUANTITY:
                    sums[place] += value
        if stream.samples and stream.first is not None:
            sums[_SPEECH_INDEX] += _audio_seconds(stream.samples, stream.first.data)


def _audio_seconds(samples: int, about: Mapping[str, Any]) -> float:
    rate = about.get("rate")  # what has none is no sound
    return samples / rate if isinstance(rate, int | float) and 1 <= rate < MAX_QUANTITY else 0.0
