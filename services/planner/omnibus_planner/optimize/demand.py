"""Demand to plan for: a rate and mixes of request types, declared or measured."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from omnibus.errors import BadRequest
from omnibus.families.plugins import join_names
from omnibus.plan import request_type
from omnibus.profile import ModelProfile
from omnibus_planner.declared.model import Model
from omnibus_planner.declared.planned_spec import GPUS, PlannedModel
from omnibus_planner.optimize.cost_model import MeasuredType, Quantities
from omnibus_planner.optimize.load import ModelLoad

#: req/s to plan for when there is no traffic.
IDLE_REQUESTS_PER_SECOND = 0.01


class ModelDemand(NamedTuple):
    """Rate and mixes to plan for.

    ``rate`` is the expected rate in req/s, ``wanted`` includes headroom. ``mixes`` are shares by request type that add
    up to 1; the first is the usual one. ``measured`` is False for a declared demand.
    """

    rate: float
    wanted: float
    mixes: tuple[dict[str, float], ...]
    quantities: Quantities
    measured: bool

    @property
    def request_types(self) -> set[str]:
        """Return the request types that have a share in some mix."""
        return {kind for mix in self.mixes for kind, share in mix.items() if share > 0}


class DeclaredDemand(msgspec.Struct, frozen=True):
    """Declared rate and mixes, as shares by request type."""

    rate: float
    mixes: tuple[dict[str, float], ...]


def declared_demand(
    model: Model, asked: PlannedModel, profile: ModelProfile, kinds: Mapping[str, MeasuredType]
) -> DeclaredDemand:
    """Return the declared demand.

    Raises ``BadRequest`` for a mix with an unknown request type, and for a workload without requests.
    """
    called = {name: frozenset(kind.components) for name, kind in profile.types.items()}
    mixes = [_normalize_type_names(model, mix, called) for mix in asked.mixes]
    if asked.mix is not None:
        usual = _normalize_type_names(model, asked.mix, called)
    elif mixes:
        usual = mixes[0]
    else:
        usual = {name: kind.share for name, kind in kinds.items()}
    if not sum(usual.values()) > 0:
        raise BadRequest(
            f"model {model.name}: its profile gives no request type a share: measure with a workload, or declare "
            "a planned 'mix'"
        )
    every = [_normalized_mix(mix) for mix in (usual, *mixes)]
    return DeclaredDemand(asked.rate, (every[0], *[mix for mix in every[1:] if mix != every[0]]))


def resolve_demand(model: Model, asked: PlannedModel, told: DeclaredDemand, load: ModelLoad | None) -> ModelDemand:
    """Return the demand to plan for: from ``load`` if it has data, else the declared one, ``told``.

    Request types of other components are not counted.
    """
    spare = 1.0 + (asked.headroom if asked.goal == GPUS else 0.0)
    if load is None:
        return ModelDemand(told.rate, told.rate * spare, told.mixes, {}, measured=False)
    shares, sizes = dict[str, float](), dict[str, Mapping[str, float]]()
    for kind, share in load.shares.items():
        parts = _type_components(kind, model.components)
        if parts and share > 0:
            name = request_type(model.components, parts)
            shares[name] = shares.get(name, 0.0) + share
    for kind, quantities in load.quantities.items():
        if parts := _type_components(kind, model.components):
            sizes[request_type(model.components, parts)] = quantities
    usual = _normalized_mix(shares) if shares else told.mixes[0]
    robust = told.mixes if asked.mixes else ()
    rate = max(load.rate, IDLE_REQUESTS_PER_SECOND)
    return ModelDemand(rate, rate * spare, (usual, *[mix for mix in robust if mix != usual]), sizes, measured=True)


def _normalize_type_names(
    model: Model, mix: Mapping[str, float], called: Mapping[str, frozenset[str]]
) -> dict[str, float]:
    """Return the shares by the names of request types in plans."""
    found: dict[str, float] = {}
    for kind, share in mix.items():
        parts = called.get(kind) or _type_components(kind, model.components)
        if not parts or not parts <= set(model.components):
            raise BadRequest(
                f"model {model.name}: planned mix names {kind!r}, which is no request type: join components by '+'; "
                f"there is {join_names(model.components)}"
            )
        name = request_type(model.components, parts)
        found[name] = found.get(name, 0.0) + share
    return found


def _type_components(kind: str, components: Collection[str]) -> frozenset[str]:
    """Return the components in the name of a request type; none if the name contains others."""
    parts = frozenset(kind.split("+"))
    return parts if parts <= set(components) else frozenset()


def _normalized_mix(mix: Mapping[str, float]) -> dict[str, float]:
    total = sum(mix.values())
    return {kind: share / total for kind, share in mix.items()}
