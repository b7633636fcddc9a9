"""Work that r replicas may get for short tail latencies: kappa_s(r) seconds per second, not r.

Many replicas with one queue may be busier than few. The limit is the utilisation of r replicas at which the 99th
percentile of waiting and serving stays below ten times the mean service time. Service times have a coefficient of
variation of 1. The limit depends on the choice among replicas; simulated:
"""

from collections.abc import Mapping

from omnibus_planner.solve.problem import require

#: Admissible utilisation by choice of a replica and number of replicas; linear in between.
UTILISATION: dict[str, dict[int, float]] = {
    "random": {1: 0.55},
    "round-robin": {1: 0.53, 2: 0.66, 4: 0.71, 8: 0.73, 16: 0.71},
    "power-of-two": {1: 0.55, 2: 0.71, 4: 0.84, 8: 0.89, 16: 0.91},
    "shortest-queue": {1: 0.49, 2: 0.72, 4: 0.87, 8: 0.90, 16: 0.96},
}


def admissible_work(utilisation: Mapping[int, float] | str, most: int) -> tuple[float, ...]:
    """Return the work that 1, 2, ... ``most`` replicas may get, for ``Terms.admissible``.

    ``utilisation`` is by number of replicas, or a name of ``UTILISATION``. More replicas may always do as much as
    fewer.
    """
    require(most >= 1, f"at most {most} replicas: there must be 1 or more")
    if isinstance(utilisation, str):
        require(utilisation in UTILISATION, f"{utilisation!r} is no way to choose; there is {', '.join(UTILISATION)}")
        utilisation = UTILISATION[utilisation]
    require(bool(utilisation), "the utilisation is empty")
    for count, part in utilisation.items():
        require(count >= 1 and 0 < part <= 1, f"utilisation {part} of {count} replicas must be more than 0, at most 1")
    work: list[float] = []
    for count in range(1, most + 1):
        work.append(max([count * _interpolate_utilisation(utilisation, count), *work[-1:]]))
    return tuple(work)


def _interpolate_utilisation(known: Mapping[int, float], count: int) -> float:
    below = max((at for at in known if at <= count), default=min(known))
    above = min((at for at in known if at >= count), default=max(known))
    if above <= below:
        return known[below]
    part = (count - below) / (above - below)
    return known[below] * (1 - part) + known[above] * part
