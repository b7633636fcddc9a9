"""Usage of a request: engine seconds by stage, GPU-seconds, joules, transferred bytes, and cost.

This module has only data and sums. The cost follows from a plan's prices. Requests in a batch share the seconds that
the engine computes for them. Over all requests, their seconds therefore sum to the busy time of executors.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

SECONDS_PER_HOUR = 3600.0
#: Decimal places of seconds, money and joules.
_SECONDS_PLACES, _MONEY_PLACES, _JOULES_PLACES = 7, 12, 6


class StageRate(NamedTuple):
    """Rate of a stage: a second takes ``gpus`` GPUs (or places) of type ``gpu``, and ``money`` if known."""

    gpu: str
    gpus: int
    money: float | None


class StageUsage(msgspec.Struct, frozen=True):
    """Usage of one node of the graph: ``seconds`` of its engine on ``gpus`` GPUs of type ``gpu``.

    ``gpu`` is "cpu" for a place without a GPU, which counts as one, and empty if the plan names no type.
    ``energy_joules`` is absent without a meter.
    """

    node: int
    component: str
    option: str
    gpu: str
    gpus: int
    seconds: float
    gpu_seconds: float
    money: float | UnsetType = UNSET
    energy_joules: float | UnsetType = UNSET


class RequestUsage(msgspec.Struct, frozen=True):
    """Usage of a request.

    ``money`` in ``currency`` is absent if the plan lacks the price of a stage, ``energy_joules`` if a stage has no
    meter. ``nbytes`` were transferred between nodes. ``complete`` is False if a stage did not report, for example
    because it failed.
    """

    stages: tuple[StageUsage, ...]
    gpu_seconds: float
    nbytes: int = 0
    money: float | UnsetType = UNSET
    currency: str | UnsetType = UNSET
    complete: bool = True
    energy_joules: float | UnsetType = UNSET


def stage_usage(
    node: int, component: str, option: str, rate: StageRate, seconds: float, joules: float = -1.0
) -> StageUsage:
    """Return the usage of a node whose engine computed ``seconds`` for it.

    ``joules`` below 0 mean that the energy is unknown.
    """
    money = UNSET if rate.money is None else round(seconds * rate.money, _MONEY_PLACES)
    gpu_seconds = round(seconds * rate.gpus, _SECONDS_PLACES)
    energy = UNSET if joules < 0 else joules
    return StageUsage(node, component, option, rate.gpu, rate.gpus, seconds, gpu_seconds, money, energy)


def sum_stages(stages: Iterable[StageUsage], currency: str, nbytes: int = 0, *, complete: bool = True) -> RequestUsage:
    """Return the total usage of all ``stages``."""
    usages = tuple(stages)
    has_price, has_energy = bool(currency), bool(usages)
    gpu_seconds = money = joules = 0.0
    for stage in usages:  # runs for every request: no comprehensions, which are calls
        gpu_seconds += stage.gpu_seconds
        if stage.money is UNSET:
            has_price = False
        else:
            money += stage.money
        if stage.energy_joules is UNSET:
            has_energy = False
        else:
            joules += stage.energy_joules
    return RequestUsage(
        usages,
        round(gpu_seconds, _SECONDS_PLACES),
        nbytes,
        round(money, _MONEY_PLACES) if has_price else UNSET,
        currency if has_price else UNSET,
        complete,
        round(joules, _JOULES_PLACES) if has_energy else UNSET,
    )


def join_usages(usages: Iterable[RequestUsage]) -> RequestUsage:
    """Return the usage of several segments of one request."""
    parts = list(usages)
    if len(parts) == 1:
        return parts[0]
    currencies = {each.currency for each in parts if each.currency is not UNSET}
    return sum_stages(
        [stage for each in parts for stage in each.stages],
        str(currencies.pop()) if len(currencies) == 1 else "",
        sum(each.nbytes for each in parts),
        complete=all(each.complete for each in parts),
    )
