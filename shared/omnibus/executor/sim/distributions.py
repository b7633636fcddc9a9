"""Quantities of a simulation profile: seconds of a batch, sizes of outputs, and repeatable random numbers."""

from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from math import exp, log1p, sqrt
from statistics import NormalDist
from typing import Annotated

import msgspec

#: At most a day: a longer time is a typing error.
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=86400.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Amount = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]

_MULTIPLIER, _INCREMENT = 6364136223846793005, 1442695040888963407  # Knuth's MMIX generator
_MODULUS = 2**64
_standard = NormalDist().inv_cdf


class Draw:
    """Random numbers that depend only on ``parts``: equal parts give equal sequences."""

    __slots__ = ("_state",)

    def __init__(self, *parts: object) -> None:
        key = "/".join(map(str, parts)).encode()
        self._state = int.from_bytes(blake2b(key, digest_size=8).digest(), "big")

    def uniform(self) -> float:
        """Return a number in (0, 1)."""
        self._state = (self._state * _MULTIPLIER + _INCREMENT) % _MODULUS
        return ((self._state >> 11) + 0.5) / 2**53

    def integer_below(self, limit: int) -> int:
        """Return an integer in [0, limit)."""
        return int(self.uniform() * limit)

    def lognormal(self, cv: float) -> float:
        """Return a number with mean 1 and coefficient of variation ``cv``."""
        if not cv:
            return 1.0
        variance = log1p(cv * cv)
        return exp(sqrt(variance) * _standard(self.uniform()) - variance / 2)

    def jitter_factor(self, jitter: float) -> float:
        """Return a number in (1 - jitter, 1 + jitter), with mean 1."""
        return 1.0 + jitter * (2.0 * self.uniform() - 1.0) if jitter else 1.0


class SizeDistribution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Distribution of a size, at least 1 and at most ``most`` (0: no limit).

    It is lognormal with ``mean`` and coefficient of variation ``cv``, plus ``per`` for each unit of the quantity that
    it depends on.
    """

    mean: Amount = 0.0
    cv: Annotated[float, msgspec.Meta(ge=0.0, le=10.0)] = 0.0
    per: Amount = 0.0
    most: Annotated[int, msgspec.Meta(ge=0)] = 0

    def draw_size(self, draw: Draw, amount: float = 0.0) -> int:
        whole = max(1, round(self.mean * draw.lognormal(self.cv) + self.per * amount))
        return min(whole, self.most) if self.most else whole


class Curve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of one batch, the sum of these terms:

        - ``points``: [[items, seconds], ...] as measured, interpolated linearly between them and beyond the last
        - ``base``: of every batch
        - ``per_item``: of every item
        - ``per_token``: of every token of all items together, or of ``saturation`` tokens if there are fewer

    Up to ``saturation`` tokens the device is not full, so that more tokens cost nothing.
    """

    points: tuple[tuple[Count, Seconds], ...] = ()
    base: Seconds = 0.0
    per_item: Seconds = 0.0
    per_token: Seconds = 0.0
    saturation: Annotated[int, msgspec.Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        sizes = [items for items, _ in self.points]
        if sizes != sorted(set(sizes)):
            raise ValueError(f"points must go from small to large batches, each once, not {sizes}")
        if self.seconds(1, 1) <= 0.0:
            raise ValueError("a batch must take some time: give points, base, per_item or per_token")

    def seconds(self, items: int, tokens: int) -> float:
        """Return the seconds of a batch of ``items`` with ``tokens`` in total."""
        busy = max(tokens, self.saturation)
        return self._measured_seconds(items) + self.base + self.per_item * items + self.per_token * busy

    def split_seconds(self, tokens: Sequence[int]) -> list[float]:
        """Divide the seconds of a batch among its items: tokens by item, the rest equally."""
        whole, total = self.seconds(len(tokens), sum(tokens)), sum(tokens)
        rest = (whole - self.per_token * total) / len(tokens)
        return [rest + self.per_token * own for own in tokens]

    def _measured_seconds(self, items: int) -> float:
        points = self.points
        if not points:
            return 0.0
        at = bisect_left(points, (items,))
        if at == 0:
            return points[0][1]
        if at < len(points):
            return _interpolate(points[at - 1], points[at], items)
        if len(points) == 1:
            return points[0][1] * items / points[0][0]
        return max(points[-1][1], _interpolate(points[-2], points[-1], items))


def _interpolate(left: tuple[int, float], right: tuple[int, float], at: int) -> float:
    return left[1] + (right[1] - left[1]) * (at - left[0]) / (right[0] - left[0])
