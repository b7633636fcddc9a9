"""Sizes of a request in the quantities of profiles: estimates, then measurements."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omnibus.profile import QUANTITIES
from omnibus_gateway.dispatch.streams import ResultStream

#: Limit of a quantity of one request, because quantities come from engines, which may be an app's code.
MAX_QUANTITY = 1 << 32

#: Estimated quantities of a request on arrival, by their indices in ``QUANTITIES``.
Estimates = Sequence[tuple[int, float]]

#: Sizes that predict the seconds of a stage: quantities, and the work of the stage's nodes. The composite task
#: estimates the work; requests other than chats have no other size.
SIZES = (*QUANTITIES, "work")
WORK = len(QUANTITIES)

_QUANTITY_INDEX = {name: place for place, name in enumerate(QUANTITIES)}
_SPEECH_INDEX = _QUANTITY_INDEX["speech_seconds"]


def apply_estimates(sizes: list[float], estimates: Estimates) -> None:
    """Replace the estimated ``sizes`` by the sums of their estimates; each medium adds a part."""
    for place, _ in estimates:
        sizes[place] = 0.0
    for place, value in estimates:
        sizes[place] += value


def add_quantities(sums: list[float], streams: Iterable[ResultStream]) -> None:
    """Add the quantities in ``streams``: tokens by the thinker's count, and seconds of audio."""
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
    rate = about.get("rate")  # only audio has a rate
    return samples / rate if isinstance(rate, int | float) and 1 <= rate < MAX_QUANTITY else 0.0
