"""Rules of others as policies: they choose the replicas, and the best paths over these serve.

Plans are compared with them (``planned.policy``), and they are candidates in addition to the solver's own plan. They
are the monolith, TriInfer's Algorithm 2, ModServe's load over capacity, and the greedy cells of the planner paper
(``cells.py``).
"""

import math
from collections.abc import Iterator, Mapping

import msgspec

from omnibus.errors import BadRequest, DeadlineExceeded
from omnibus_planner.declared.planned_spec import GPUS, GREEDY_CELLS, MODSERVE, MONOLITH, POLICIES
from omnibus_planner.optimize.cells import solve_cells
from omnibus_planner.optimize.demand import ModelDemand
from omnibus_planner.optimize.joint import GpuBudget, PlanningGroup, PlanningOutcome
from omnibus_planner.optimize.model_inputs import ModelInputs
from omnibus_planner.solve import baselines
from omnibus_planner.solve.flow_matrix import FlowMatrix
from omnibus_planner.solve.problem import Infeasible

#: The stages of TriInfer by the kinds of their components.
_STAGES = {
    "E": ("encode",),
    "P": ("prefill",),
    "D": ("decode",),
    "EP": ("encode", "prefill"),
    "ED": ("encode", "decode"),
}
#: Largest cell in GPUs among candidates with greedy cells, as in the planner paper.
_MAX_CELL_GPUS = 8
#: Relative precision of the highest rate of ModServe's rule.
_PRECISION = 1e-4


def solve_baselines(
    group: PlanningGroup, demands: Mapping[str, ModelDemand], room: GpuBudget
) -> Iterator[tuple[str, PlanningOutcome]]:
    """Yield the deployment by each policy that fits the group's one model.

    Each of them runs all components of the model, as one deployment, because no cells were declared.
    """
    for policy in filter(None, POLICIES):
        try:
            found = solve_by_policy(group, demands, room, policy, cells=_MAX_CELL_GPUS)
        except (BadRequest, Infeasible, DeadlineExceeded):
            continue
        if not found.unserved and (found.places or not room.nodes):
            yield policy, found._replace(cells={}, cell_solutions={})


def solve_by_policy(
    group: PlanningGroup, demands: Mapping[str, ModelDemand], room: GpuBudget, policy: str, cells: int
) -> PlanningOutcome:
    """Return the deployment by ``policy`` of the one model of ``group``.

    It fits into ``room``. ``cells`` is the largest cell in GPUs. Raises ``BadRequest`` for options that the policy does
    not support, and ``Infeasible`` if it serves no requests.
    """
    if policy == GREEDY_CELLS:
        return solve_cells(group, demands, room, cells, printed=True)
    name, ready = next(iter(group.ready.items()))
    kinds = {option.gpu for option in ready.options.values()}
    if len(kinds) != 1:
        raise BadRequest(f"model {name}: policy {policy!r} needs options on GPUs of one type, not {sorted(kinds)}")
    have = None if room.gpus is None else room.gpus.get(next(iter(kinds)), 0)
    frame = _mixed_frame(group, demands, room)
    if policy == MONOLITH:
        replicas = _plan_monolith(frame, group.goal, name, have)
    elif policy == MODSERVE:
        replicas = _plan_modserve(frame, group.goal, name, have)
    else:
        replicas = _plan_triinfer(frame, name, ready, have)
    found = group.route_running(demands, replicas, room, partial=False)
    if found.solution.rate <= 0:
        raise Infeasible(f"model {name}: what policy {policy!r} chooses serves no requests")
    return found


def _mixed_frame(group: PlanningGroup, demands: Mapping[str, ModelDemand], room: GpuBudget) -> FlowMatrix:
    """Return the network with the mix to serve; rate 1 is all of it."""
    asked = group.build_question(demands, {}, room)
    mix = asked.solver.create_run(msgspec.structs.replace(asked.terms, covers=())).mixes[0]
    network = asked.solver.frame.network
    return FlowMatrix(type(network)(network.options, network.types, tuple(mix), network.whole, network.arcs))


def _plan_monolith(frame: FlowMatrix, goal: str, name: str, have: int | None) -> dict[str, int]:
    if have is None:
        raise BadRequest(f"model {name}: policy {MONOLITH!r} needs a number of GPUs")
    replicas, rate = baselines.plan_monolith(frame, have)
    if rate <= 0:
        raise Infeasible(f"model {name}: no option runs all components on {have} GPUs, as policy {MONOLITH!r} needs")
    if goal == GPUS:  # as many as the rate requires
        option, count = next(iter(replicas.items()))
        replicas = {option: min(count, count if rate <= 1 else math.ceil(count / rate - 1e-9))}
    return replicas


def _plan_modserve(frame: FlowMatrix, goal: str, name: str, have: int | None) -> dict[str, int]:
    """Choose replicas by load over capacity.

    They are for the rate, or for the highest rate that fits.
    """
    gpus = {option: each.gpus for option, each in frame.network.options.items()}

    def cost(rate: float) -> int:
        return sum(gpus[option] * count for option, count in baselines.plan_modserve(frame, rate).items())

    if goal == GPUS and (have is None or cost(1.0) <= have):
        return baselines.plan_modserve(frame, 1.0)
    if have is None or cost(_PRECISION) > have:
        raise Infeasible(
            f"model {name}: {have or 0} GPUs hold no executor for each stage, as policy {MODSERVE!r} needs"
        )
    low, high = _PRECISION, 1.0
    while cost(high) <= have:
        low, high = high, 2 * high
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) <= have else (low, middle)
    return baselines.plan_modserve(frame, low)


def _plan_triinfer(frame: FlowMatrix, name: str, ready: ModelInputs, have: int | None) -> dict[str, int]:
    """Run Algorithm 2 over the options of its stages.

    They must have equal numbers of GPUs.
    """
    stages = {stage: option for stage in _STAGES if (option := _find_stage(ready, stage))}
    missing = [stage for stage in "EPD" if stage not in stages]
    if missing:
        raise BadRequest(
            f"model {name}: TriInfer's stages are encode, prefill and decode; no option is {missing[0]} alone"
        )
    each = {ready.options[option].gpus for option in stages.values()}
    if len(each) != 1 or have is None:
        raise BadRequest(
            f"model {name}: TriInfer's instances take the same number of GPUs each, of a number that is given"
        )
    named = {stage: f"{name}/{option}" for stage, option in stages.items()}
    return baselines.plan_triinfer(frame, named, have // each.pop())[1]


def _find_stage(ready: ModelInputs, stage: str) -> str:
    for name, option in ready.options.items():
        if sorted(ready.model.kinds[part] for part in option.components) == sorted(_STAGES[stage]):
            return name
    return ""
