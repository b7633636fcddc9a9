"""The highest rate of one replica for a mix of roles: a closed loop of requests on its device."""

from collections.abc import Iterable, Mapping
from statistics import NormalDist
from typing import NamedTuple

from omnibus.errors import BadRequest
from omnibus.executor.sim.predict import TypeDemand, predict_performance
from omnibus_planner.simulate.arrivals import ANSWER_SIZES, answer_factor
from omnibus_planner.simulate.devices import ModelDevices

#: Requests in flight at all times, and observed requests.
_INFLIGHT, _OBSERVED_REQUESTS = 64, 240
#: Rows of a batch for options that do not define them, as in executors (``OMNIBUS_EXECUTOR_BATCH``).
BATCH_ROWS = 16
#: Number of answers' sizes per role: with one size, all answers of a batch would end together.
_SIZE_COUNT = 5


class RoleRate(NamedTuple):
    """Requests per second of a model that bring ``role`` to an option; ``sizes`` are their means."""

    role: frozenset[str]
    rate: float
    sizes: Mapping[str, float]


class Saturated(NamedTuple):
    """One fully busy replica: req/s, and seconds of its device per request by component."""

    rate: float
    seconds: dict[str, float]


def saturate_replica(
    devices: ModelDevices, option: str, roles: Iterable[RoleRate], model: str = "", requests: int = _OBSERVED_REQUESTS
) -> Saturated:
    """Return one replica's highest rate for all ``roles`` together.

    The roles keep the proportions of their rates. Raises ``BadRequest`` if none of them brings work.
    """
    mix = {
        f"{number}/{step}": TypeDemand(each.rate / _SIZE_COUNT, devices.role_loads(each.role, sizes))
        for number, each in enumerate(roles)
        if each.rate > 0
        for step, sizes in enumerate(_size_steps(each.sizes))
    }
    if not mix:
        raise BadRequest(f"option {option} has nothing to do: give its roles a rate")
    found = predict_performance(
        devices.times, option, mix, model=model, inflight=_INFLIGHT, batch=BATCH_ROWS, requests=requests
    )
    total, seconds = sum(demand.share for demand in mix.values()), dict[str, float]()
    for name, demand in mix.items():
        for part, spent in found.parts[name].items():
            seconds[part] = seconds.get(part, 0.0) + spent * demand.share / total
    return Saturated(found.throughput, seconds)


def saturated_rate(
    devices: ModelDevices, option: str, roles: Iterable[RoleRate], model: str = "", requests: int = _OBSERVED_REQUESTS
) -> float:
    """Return the req/s of ``saturate_replica``."""
    return saturate_replica(devices, option, roles, model, requests).rate


def _size_steps(sizes: Mapping[str, float]) -> list[dict[str, float]]:
    """Return ``sizes`` with shorter and longer answers, of the same mean."""
    factors = [answer_factor(NormalDist().inv_cdf((step + 0.5) / _SIZE_COUNT)) for step in range(_SIZE_COUNT)]
    mean = sum(factors) / len(factors)
    return [
        {name: value * factor / mean if name in ANSWER_SIZES else value for name, value in sizes.items()}
        for factor in factors
    ]
