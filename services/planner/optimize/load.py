"""Load that a model has to serve: number, types and sizes of its requests. Data."""

from collections.abc import Mapping

import msgspec


class ModelLoad(msgspec.Struct, frozen=True):
    """``rate`` in req/s, ``shares`` of the request types (``vision+thinker``), in any unit that they share, and means
    of ``omnibus.profile.QUANTITIES`` per request by type; a type or quantity that is not told is the profile's."""

    rate: float
    shares: dict[str, float] = {}
    quantities: dict[str, dict[str, float]] = {}


#: By model.
Loads = Mapping[str, ModelLoad]
