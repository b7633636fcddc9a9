"""Load on a model: number, types and sizes of its requests. Data."""

from collections.abc import Mapping

import msgspec


class ModelLoad(msgspec.Struct, frozen=True):
    """Measured load of one model.

    ``rate`` is in req/s. ``shares`` of the request types (``vision+thinker``) have any common unit. ``quantities`` are
    means of ``omnibus.profile.QUANTITIES`` per request by type; a missing type or quantity is the profile's.
    """

    rate: float
    shares: dict[str, float] = {}
    quantities: dict[str, dict[str, float]] = {}


#: Loads by model.
Loads = Mapping[str, ModelLoad]
