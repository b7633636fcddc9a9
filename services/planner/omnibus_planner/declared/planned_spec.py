"""Declaration of a planned model by an operator: its profile and its goal. Data and their checks.

For example:

    {"family": "...", "checkpoint": "...", "planned": {
        "profile": "q.json", "goal": "throughput", "rate": 12.0, "mix": {"vision+thinker": 0.6, "thinker": 0.4},
        "goals": {"first_token": 1.0}, "options": ["E", "L"], "headroom": 0.2}}
"""

import math
from collections.abc import Iterator, Mapping

import msgspec

from omnibus.errors import BadRequest
from omnibus.plan_goals import ModelGoals

#: Planning goals: most requests within the GPUs, or fewest GPUs for a rate.
THROUGHPUT, GPUS = "throughput", "gpus"
#: The value of ``options`` that adds every set of components to the measured ones.
ALL = "all"
#: Rules of others to plan by, for comparisons: all components on every GPU, the planner paper's greedy cells,
#: TriInfer's Algorithm 2, ModServe's load over capacity. Empty: the best deployment.
EXACT, MONOLITH, GREEDY_CELLS, TRIINFER, MODSERVE = "", "monolith", "greedy_cells", "triinfer", "modserve"
POLICIES = (EXACT, MONOLITH, GREEDY_CELLS, TRIINFER, MODSERVE)
#: GPUs of the largest cell.
MAX_CELL_GPUS = 256


class GpuType(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """GPUs of one type: their number, memory, and price.

    ``memory_gb`` is that of one GPU (0: unknown). With a declared currency the price is for an hour in it; otherwise it
    is in any unit.
    """

    count: int
    memory_gb: float = 0.0
    price: float | None = None

    @property
    def weight(self) -> float:
        """Price for the comparison of options: 1 without a price."""
        return 1.0 if self.price is None else self.price


class DeclaredNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node with ``gpus`` of type ``gpu``; a replica cannot span two.

    ``link_gb_s`` is the bandwidth of its network link in each direction, in GB/s (10 Gbit/s are 1.25). None means
    unknown.
    """

    gpus: int
    gpu: str = ""
    link_gb_s: float | None = None


class TypeLatencyGoals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """99th percentiles to keep, in seconds; ``real_time`` is seconds needed per second of speech. 0: any."""

    first_token: float = 0.0
    token: float = 0.0
    first_audio: float = 0.0
    real_time: float = 0.0
    done: float = 0.0

    def active_goals(self) -> dict[str, float]:
        """Return the goals that are not 0."""
        return {name: value for name in TypeLatencyGoals.__struct_fields__ if (value := getattr(self, name))}


class TailLatencyGoals(TypeLatencyGoals, frozen=True, forbid_unknown_fields=True):
    """Goals of all requests. ``types`` replace single figures for requests that use the components of a key.

    For example, ``{"first_token": 0.5, "types": {"vision": {"first_token": 2.0}}}`` gives images more time.
    """

    types: dict[str, TypeLatencyGoals] = {}

    def of_model(self) -> ModelGoals:
        """Return all goals that are not 0."""
        types = {parts: goals.active_goals() for parts, goals in self.types.items()}
        return ModelGoals(self.active_goals(), {parts: goals for parts, goals in types.items() if goals})


class PlannedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Planning parameters of a model.

    ``profile`` is a file, relative to the declarations; empty means the store's profile of the model. ``rate`` in req/s
    is the planned one; with goal "throughput" only its proportion to other models counts. ``mix`` are shares by request
    type (None: the profile's), and one deployment also serves each of ``mixes``. ``options`` are the only ones to use
    (None: those of the profile). The value "all" adds estimated options that were not measured. With ``cells`` above 0,
    the plan has cells of 1, 2, 4, ... up to so many GPUs instead of one deployment.

    With ``adapt``, the planner plans again as the load changes. ``headroom`` is the spare fraction of the rate, with
    goal "gpus". ``policy`` is the rule to plan by, one of ``POLICIES``. With ``learn``, plans use the measured seconds
    of executors while they serve. ``spares`` are executors of each component that are ready beyond the needs of load
    and ``headroom``, with goal "gpus".
    """

    profile: str = ""
    goal: str = THROUGHPUT
    rate: float = 0.0
    mix: dict[str, float] | None = None
    mixes: tuple[dict[str, float], ...] = ()
    goals: TailLatencyGoals = TailLatencyGoals()
    options: tuple[str, ...] | str | None = None
    cells: int = 0
    adapt: bool = True
    headroom: float = 0.2
    policy: str = EXACT
    learn: bool = True
    spares: int = 0


def check_planned_model(model: str, planned_model: PlannedModel) -> None:
    """Raises ``BadRequest`` with the model and the invalid field."""

    def require_valid(good: bool, fault: str) -> None:
        if not good:
            raise BadRequest(f"model {model}: planned {fault}")

    require_valid(
        planned_model.goal in (THROUGHPUT, GPUS), f"goal is {planned_model.goal!r}; there is {THROUGHPUT} and {GPUS}"
    )
    for name, value in _numeric_fields(planned_model):
        require_valid(math.isfinite(value) and value >= 0, f"{name} is {value}: it must be a finite number, 0 or more")
    require_valid(planned_model.goal != GPUS or planned_model.rate > 0, f"goal {GPUS!r} needs a rate in req/s above 0")
    for number, mix in enumerate(
        [*([planned_model.mix] if planned_model.mix is not None else []), *planned_model.mixes]
    ):
        require_valid(any(share > 0 for share in mix.values()), f"mix {number} gives no request type a share")
    require_valid(
        0 <= planned_model.cells <= MAX_CELL_GPUS,
        f"cells is {planned_model.cells}: it must be 0 to {MAX_CELL_GPUS} GPUs",
    )
    require_valid(
        planned_model.spares >= 0, f"spares is {planned_model.spares}: it must be 0 or more executors of each component"
    )
    plain = planned_model.goal == GPUS and not planned_model.cells and planned_model.policy == EXACT
    require_valid(
        plain or not planned_model.spares, f"spares need goal {GPUS!r}, no cells and no policy: leave 'spares' out"
    )
    policy_names = ", ".join(POLICIES[1:])
    require_valid(
        planned_model.policy in POLICIES,
        f"policy is {planned_model.policy!r}; there is {policy_names}, and none for the best plan",
    )
    require_valid(
        planned_model.cells == 0 or not planned_model.mixes,
        "cells cannot be planned for several mixes: leave out 'mixes'",
    )
    fits = planned_model.policy in (EXACT, GREEDY_CELLS)
    require_valid(
        fits or not planned_model.cells, f"policy {planned_model.policy!r} does not support cells: leave 'cells' out"
    )
    require_valid(
        fits or not planned_model.mixes, f"policy {planned_model.policy!r} supports only one mix: leave 'mixes' out"
    )
    require_valid(
        planned_model.policy != GREEDY_CELLS or planned_model.cells > 0,
        f"policy {GREEDY_CELLS!r} needs 'cells', the largest",
    )
    if isinstance(planned_model.options, str):
        require_valid(
            planned_model.options == ALL, f"options is {planned_model.options!r}: give a list of options, or {ALL!r}"
        )
    elif planned_model.options is not None:
        require_valid(bool(planned_model.options), "options is an empty list: leave it out to use all of the profile")


def check_gpus(gpus: Mapping[str, GpuType], nodes: Mapping[str, DeclaredNode], currency: str = "") -> None:
    """Raises ``BadRequest`` with the invalid GPU type or node. With a ``currency`` each type needs a price."""
    for name, kind in gpus.items():
        _require_valid(kind.count >= 0, f"gpus: there are {kind.count} of type {name!r}")
        _require_valid(
            not currency or kind.price is not None,
            f"gpus: {name!r} has no price; with a currency each type has one, for an hour",
        )
        for field, value in (("memory_gb", kind.memory_gb), ("price", kind.weight)):
            _require_valid(
                math.isfinite(value) and value >= 0, f"gpus: {field} of {name!r} is {value}: it must be 0 or more"
            )
    for name, node in nodes.items():
        _require_valid(node.gpus >= 0, f"nodes: {name} has {node.gpus} GPUs")
        _require_valid(
            node.link_gb_s is None or (math.isfinite(node.link_gb_s) and node.link_gb_s > 0),
            f"nodes: link_gb_s of {name} is {node.link_gb_s}: it must be GB/s above 0; leave it out when it is unknown",
        )
        _require_valid(
            not gpus or node.gpu in gpus or (not node.gpu and len(gpus) == 1),
            f"nodes: {name} has GPUs of type {node.gpu!r}; 'gpus' names {', '.join(gpus)}",
        )


def _require_valid(good: bool, fault: str) -> None:
    if not good:
        raise BadRequest(fault)


def _numeric_fields(planned_model: PlannedModel) -> Iterator[tuple[str, float]]:
    yield "rate", planned_model.rate
    yield "headroom", planned_model.headroom
    goals = planned_model.goals
    for label, each in (("goals", goals), *((f"goals.types.{parts}", each) for parts, each in goals.types.items())):
        yield from ((f"{label}.{name}", getattr(each, name)) for name in TypeLatencyGoals.__struct_fields__)
    for mix in (planned_model.mix or {}, *planned_model.mixes):
        yield from ((f"the share of {kind}", share) for kind, share in mix.items())
