"""Arrivals of requests at a plan: at random times from a mix, or recorded ones."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import exp, log, log1p, sqrt
from typing import NamedTuple

from omnibus.errors import BadRequest
from omnibus.executor.sim.distributions import Draw

#: Coefficient of variation of answers' sizes of which only the mean is known, and these sizes.
SIZE_VARIATION = 0.3
ANSWER_SIZES = ("completion_tokens", "speech_seconds")


class Arrival(NamedTuple):
    """A request of type ``kind`` to ``model`` at virtual second ``at``.

    ``sizes`` are quantities (``omnibus.profile.QUANTITIES``) and the number of ``images``. Engines draw the missing
    sizes.
    """

    at: float
    model: str
    kind: str
    sizes: Mapping[str, float]


class ArrivalCount(NamedTuple):
    """``requests`` of type ``kind`` to ``model`` between two times, in seconds."""

    begin: float
    end: float
    model: str
    kind: str
    requests: int


class TypeRate(NamedTuple):
    """Req/s and mean sizes of one request type of a model."""

    model: str
    kind: str
    rate: float
    sizes: Mapping[str, float] = {}


def poisson_arrivals(rates: Sequence[TypeRate], seconds: float, seed: int = 1) -> Iterator[Arrival]:
    """Yield requests at random times for ``seconds``. Sizes vary around their means.

    Raises ``BadRequest`` without a rate.
    """
    total = _total_rate(rates)
    marks = list(accumulate(each.rate for each in rates))
    draw, at = Draw("arrivals", seed), 0.0
    while (at := at - log(draw.uniform()) / total) < seconds:
        place = draw.uniform() * total
        chosen = next((each for each, mark in zip(rates, marks, strict=True) if place < mark), rates[-1])
        yield Arrival(at, chosen.model, chosen.kind, _vary_sizes(chosen.sizes, draw))


def even_arrivals(rates: Sequence[TypeRate], seconds: float, seed: int = 1) -> Iterator[Arrival]:
    """Yield requests at equal intervals for ``seconds``.

    Each type has as many as its rate requires, to within one. Without random arrivals, a few hundred requests show if
    executors keep up.
    """
    total = _total_rate(rates)
    draw, due = Draw("arrivals", seed), [0.5] * len(rates)
    for number in range(int(seconds * total)):
        for place, each in enumerate(rates):
            due[place] += each.rate / total
        chosen = max(range(len(rates)), key=due.__getitem__)
        due[chosen] -= 1.0
        each = rates[chosen]
        yield Arrival(number / total, each.model, each.kind, _vary_sizes(each.sizes, draw))


def scale_arrivals(arrivals: Iterable[Arrival], factor: float) -> Iterator[Arrival]:
    """Yield the same requests ``factor`` times as fast."""
    for each in arrivals:
        yield each._replace(at=each.at / factor)


def repeat_arrivals(arrivals: Sequence[Arrival], seconds: float) -> Iterator[Arrival]:
    """Yield ``arrivals`` repeatedly for ``seconds``, with the mean gap between two rounds."""
    if not arrivals:
        return
    first, last = arrivals[0].at, arrivals[-1].at
    length = (last - first) * len(arrivals) / max(1, len(arrivals) - 1) or seconds
    begin = 0.0
    while begin < seconds:
        for each in arrivals:
            at = begin + each.at - first
            if at < seconds:
                yield each._replace(at=at)
        begin += length


def _total_rate(rates: Sequence[TypeRate]) -> float:
    total = sum(each.rate for each in rates)
    if not total > 0:
        raise BadRequest("there are no requests to simulate: give a rate above 0 req/s")
    return total


def answer_factor(deviation: float) -> float:
    """Return an answer's size relative to the mean, by ``deviation``.

    The distribution is lognormal, and ``deviation`` counts standard deviations.
    """
    variance = log1p(SIZE_VARIATION**2)
    return exp(sqrt(variance) * deviation - variance / 2)


def scattered_arrivals(
    counts: Iterable[ArrivalCount], sizes: Mapping[tuple[str, str], Mapping[str, float]], seed: int = 1
) -> list[Arrival]:
    """Return counted requests in order, at random times within each count.

    ``sizes`` are their means by model and type, around which they vary.
    """
    draw = Draw("arrivals", seed)
    found = [
        Arrival(
            each.begin + draw.uniform() * (each.end - each.begin),
            each.model,
            each.kind,
            _vary_sizes(sizes.get((each.model, each.kind), {}), draw),
        )
        for each in counts
        for _ in range(each.requests)
    ]
    return sorted(found, key=lambda each: each.at)


def _vary_sizes(sizes: Mapping[str, float], draw: Draw) -> dict[str, float]:
    """Vary ``sizes``: text and speech of an answer vary by the same factor."""
    factor = draw.lognormal(SIZE_VARIATION)
    return {name: mean * factor if name in ANSWER_SIZES else mean for name, mean in sizes.items()}
