"""Chance in a measured mix: the shares in a sample differ from those of all requests.

Of n requests, the standard deviation of a type's share p is sqrt(p (1 - p) / n). A mix counts as changed if a share
differs by more than three of these, or by more than three requests. Otherwise plans would repeatedly follow chance at
few requests per second.
"""

import math
from collections.abc import Mapping

import msgspec

from omnibus_planner.optimize.load import ModelLoad

#: Standard deviations, or requests, by which a share must differ.
_DEVIATIONS = 3.0


def without_chance(load: ModelLoad, planned_load: ModelLoad, seconds: float) -> ModelLoad:
    """Return ``load``, with the shares of ``planned_load`` if only chance differs.

    ``load`` was measured over ``seconds``.
    """
    requests = load.rate * seconds
    before, now = _normalised(planned_load.shares), _normalised(load.shares)
    if not before or not now or requests <= 0:
        return load
    if all(_is_chance(before.get(kind, 0.0), now.get(kind, 0.0), requests) for kind in {*before, *now}):
        return msgspec.structs.replace(load, shares=before)
    return load


def _is_chance(before: float, now: float, requests: float) -> bool:
    deviation = max(math.sqrt(before * (1.0 - before) / requests), 1.0 / requests)
    return abs(now - before) <= _DEVIATIONS * deviation + 1e-9


def _normalised(shares: Mapping[str, float]) -> dict[str, float]:
    total = sum(shares.values())
    return {kind: share / total for kind, share in shares.items()} if total > 0 else {}
