"""``Planner``: from declared models and their profiles to plans, jointly, within the same GPUs."""

from collections.abc import Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any

import msgspec

from omnibus.errors import BadRequest, DeadlineExceeded
from omnibus.plan import ModelPlan
from omnibus.plan_score import LearnedOption
from omnibus.profile import ModelProfile
from omnibus_planner.declared.model import Model
from omnibus_planner.declared.planned_spec import (
    EXACT,
    GPUS,
    THROUGHPUT,
    DeclaredNode,
    GpuType,
    check_gpus,
)
from omnibus_planner.declared.shared_processes import APPS
from omnibus_planner.optimize import cells, plan_builder, policies
from omnibus_planner.optimize.capacity import plan_capacity
from omnibus_planner.optimize.demand import ModelDemand, resolve_demand
from omnibus_planner.optimize.explain import MAX_ALTERNATIVES, explain_links, explain_outcome
from omnibus_planner.optimize.joint import GpuBudget, PlanningGroup, PlanningOutcome
from omnibus_planner.optimize.link_search import LinkSearch, carried_fraction
from omnibus_planner.optimize.load import Loads
from omnibus_planner.optimize.model_inputs import ModelInputs
from omnibus_planner.optimize.result import PlanningResult
from omnibus_planner.optimize.spares import add_spares, spare_counts, with_spares, without_spares
from omnibus_planner.optimize.transfers import TransferLoads
from omnibus_planner.solve.constraints import SolverNode
from omnibus_planner.solve.problem import Infeasible


class Planner:
    """Plans ``models``, each of which has a profile, within ``gpus`` and ``nodes``. Safe to call from any thread.

    Raises ``BadRequest`` with the name of the model and the fault of its declaration or profile.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        profiles: Mapping[str, ModelProfile],
        gpus: Mapping[str, GpuType],
        nodes: Mapping[str, DeclaredNode],
    ) -> None:
        check_gpus(gpus, nodes)
        lost = [name for name in models if name not in profiles]
        if lost:
            raise BadRequest(f"model {lost[0]} has no profile: write one with `omnibus profile`")
        self.models = dict(models)
        self._turn = Lock()  # the solver caches the last problem
        self._gpus = dict(gpus)
        self._nodes = _typed_nodes(gpus, nodes)
        self._room = _gpu_budget(gpus, self._nodes)
        _check_spares(models, self._nodes)
        self._ready = {name: ModelInputs(model, profiles[name], gpus, self._nodes) for name, model in models.items()}
        for ready in self._ready.values():
            ready.borrow_options(models, self._ready)
        self._groups = _group_models(self._ready)
        if self._room.gpus is None and any(each.goal == THROUGHPUT for each in self._groups):
            raise BadRequest("the goal 'throughput' needs GPUs: declare 'gpus' by type, or 'nodes'")

    @property
    def inputs(self) -> Mapping[str, ModelInputs]:
        """Models as they are planned."""
        return self._ready

    def apply_learned(self, learned: Mapping[str, Mapping[str, LearnedOption]]) -> None:
        """Replace the factors on seconds of options, by model and option.

        Models that borrow executors use the factors of the borrowed options.
        """
        every = {f"{name}/{option}": each for name, own in learned.items() for option, each in own.items()}
        with self._turn:
            for name, ready in self._ready.items():
                ready.apply_learned({**every, **learned.get(name, {})})

    @property
    def nodes(self) -> Mapping[str, DeclaredNode]:
        """Return the nodes for replicas."""
        return self._nodes

    @property
    def gpu_counts(self) -> Mapping[str, int]:
        """Return the available GPUs by type. Without a limit there is no type."""
        return self._room.gpus or {}

    @property
    def models_for_rate(self) -> frozenset[str]:
        """Return the models that are planned for the fewest GPUs."""
        return frozenset(name for name, each in self._ready.items() if each.asked.goal == GPUS)

    @property
    def start_seconds(self) -> dict[tuple[str, str], float]:
        """Return the start time in seconds of replicas, by model and option."""
        return {
            (name, option): each.start_s
            for name, ready in self._ready.items()
            for option, each in ready.options.items()
            if option not in ready.lent
        }

    def plan(
        self, load: Loads | None = None, running: Mapping[str, ModelPlan] | None = None, explain: bool = True
    ) -> PlanningResult:
        """Find the best deployment for ``load``, or for the declared demand.

        It has few new replicas compared to ``running``. Without ``explain``, alternatives are computed only when
        ``PlanningResult.why`` is called. If the load exceeds the capacity of the GPUs, the plan serves as much as they
        can. Raises ``Infeasible`` if nothing serves the declared demand, and ``DeadlineExceeded`` if no plan was found
        in time.
        """
        demands, there, room = self.resolve_demands(load), self._running_replicas(running or {}), self._room
        found = list[PlanningOutcome]()
        with self._turn:
            for group in self._groups:
                found.append(self._solve_group(group, demands, there, room, found))
                room = _remaining_budget(room, found[-1])
            planned = self._with_spares(self._build_result(found, MAX_ALTERNATIVES if explain else 0), room)
        return planned if explain else msgspec.structs.replace(planned, why=partial(self._explain_outcomes, found))

    def plan_of_running_options(self, load: Loads, running: Mapping[str, ModelPlan]) -> PlanningResult | None:
        """Find the best deployment for ``load`` from options that are ``running``.

        Returns None if they do not serve it, or if a model is planned in cells or by a policy. The result has no
        explanation until ``PlanningResult.why`` is called.
        """
        if any(group.cells or group.policy != EXACT for group in self._groups):
            return None
        demands, there, room = self.resolve_demands(load), self._running_replicas(running), self._room
        found = []
        with self._turn:
            for group in self._groups:
                try:
                    found.append(group.solve(_group_demands(group, demands), there, room, only_running=True))
                except (Infeasible, DeadlineExceeded):
                    return None
                room = _remaining_budget(room, found[-1])
            planned = self._with_spares(self._build_result(found, 0), room)
        for outcome, group in zip(found, self._groups, strict=True):
            if outcome.goal != group.goal or outcome.unserved:
                return None
        planned = planned.keep_credits(running)
        return msgspec.structs.replace(planned, why=partial(self._explain_outcomes, found))

    def plan_baselines(self, load: Loads | None = None) -> dict[str, PlanningResult]:
        """Return the plans by the rules of others, by policy.

        They exist for a single model with the goal of most requests and without a policy, not for apps. They have no
        explanation until ``PlanningResult.why`` is called.
        """
        group = self._groups[0]
        several = len(self._groups) > 1 or len(group.ready) > 1 or APPS in group.ready
        if several or group.goal != THROUGHPUT or group.policy != EXACT or group.cells or self._has_several_mixes(load):
            return {}
        found = {}
        with self._turn:
            demands = _group_demands(group, self.resolve_demands(load))
            for policy, outcome in policies.solve_baselines(group, demands, self._room):
                why = partial(self._explain_outcomes, [outcome])
                found[policy] = msgspec.structs.replace(self._build_result([outcome], 0), why=why)
        return found

    def _has_several_mixes(self, load: Loads | None) -> bool:
        return any(len(demand.mixes) > 1 for demand in self.resolve_demands(load).values())

    def _explain_outcomes(self, outcomes: Sequence[PlanningOutcome]) -> dict[str, Any]:
        with self._turn:
            return self._build_result(outcomes).explain

    def reroute_running(
        self, running: Mapping[str, ModelPlan], load: Loads | None = None, *, partial: bool = True
    ) -> PlanningResult:
        """Find the best paths for ``load`` over the running replicas alone.

        With ``partial``, options leave out components that they could run if that is clearly better. Types that they
        cannot serve have a capacity of 0, and spares do not count. Raises ``Infeasible`` for goals that
        no option meets.
        """
        demands, there, room = self.resolve_demands(load), self._running_replicas(without_spares(running)), self._room
        found = list[PlanningOutcome]()
        with self._turn:
            for group in self._groups:
                search, mine = LinkSearch(self._nodes, found), _group_demands(group, demands)
                found.append(search.route_running(group, mine, there, room, partial=partial))
                room = room._replace(nodes=_remaining_budget(room, found[-1]).nodes)
            rerouted = self._build_result(found, alternatives=0)
        spares = {name: spare_counts(running[name]) if name in running else {} for name in rerouted.models}
        models = {name: with_spares(model, spares[name]) for name, model in rerouted.models.items()}
        return msgspec.structs.replace(rerouted, models=models).keep_credits(running)

    def _with_spares(self, planned: PlanningResult, left: GpuBudget) -> PlanningResult:
        """Add the requested spares to ``planned``, as far as GPUs are ``left``."""
        if not any(ready.asked.spares for ready in self._ready.values()):
            return planned
        return msgspec.structs.replace(planned, models=add_spares(self._ready, planned.models, left))

    def _build_result(
        self, outcomes: Sequence[PlanningOutcome], alternatives: int = MAX_ALTERNATIVES
    ) -> PlanningResult:
        models: dict[str, ModelPlan] = {}
        told: dict[str, Any] = {"models": {}, "deployments": []}
        most, rates = dict[str, float](), dict[str, float]()
        celled: dict[str, tuple[ModelPlan, ...]] = {}
        transfers = TransferLoads(outcomes, self._nodes)
        told |= explain_links(transfers)
        for number, outcome in enumerate(outcomes):
            carried, link = carried_fraction(outcome, self._nodes, outcomes[:number])
            if carried < 1 and not outcome.link:
                outcome = outcome._replace(link=link)
            why = explain_outcome(outcome, self._gpus, transfers, alternatives=alternatives)
            told["models"].update(why["models"])
            told["deployments"].append(why["deployment"])
            for name in outcome.ready:
                models[name] = plan_builder.build_plan(outcome, name)
                if outcome.cells:
                    celled[name] = plan_builder.build_cells(outcome, name)
                most[name] = why["models"][name]["capacity"] = (
                    carried * outcome.solution.capacity * outcome.weights[name]
                )
                rates[name] = why["models"][name]["rate"]
        order = [name for name in self._ready if name in models]
        made = {name: models[name] for name in order}
        return PlanningResult(made, {"planned": told} if models else {}, most, rates, cells=celled)

    def capacity(self, models: Mapping[str, ModelPlan], load: Loads | None = None) -> dict[str, float]:
        """Return the capacity of the plans ``models``, in req/s by model.

        It is that along their paths, at the mix of ``load``. A model with a path that was not measured has 0. Spares do
        not count.
        """
        return plan_capacity(self._ready, without_spares(models), self.resolve_demands(load))

    def resolve_demands(self, load: Loads | None) -> dict[str, ModelDemand]:
        """Return the demand on each model: ``load``, or the declared one."""
        given = load or {}
        return {
            name: resolve_demand(ready.model, ready.asked, ready.told, given.get(name))
            for name, ready in self._ready.items()
        }

    def _running_replicas(self, running: Mapping[str, ModelPlan]) -> dict[str, int]:
        """Return the replicas by ``model/option`` that can continue unchanged."""
        found: dict[str, int] = {}
        for name, ready in self._ready.items():
            before, shell = running.get(name), plan_builder.reference_plan(ready)
            for option, deployed in before.options.items() if before is not None else ():
                known = shell.options.get(option)
                if before is None or known is None or deployed.of or known.of:
                    continue
                if before.option_origin(option) == shell.option_origin(option):
                    found[f"{name}/{option}"] = deployed.replicas
        return found

    def _solve_group(
        self,
        group: PlanningGroup,
        demands: Mapping[str, ModelDemand],
        running: Mapping[str, int],
        room: GpuBudget,
        before: Sequence[PlanningOutcome],
    ) -> PlanningOutcome:
        mine = _group_demands(group, demands)
        if group.policy != EXACT:
            return policies.solve_by_policy(group, mine, room, group.policy, group.cells)
        if group.cells:
            return cells.solve_cells(group, mine, room, group.cells)
        return LinkSearch(self._nodes, before).solve(group, mine, running, room)


def _check_spares(models: Mapping[str, Model], nodes: Mapping[str, DeclaredNode]) -> None:
    for name, model in models.items():
        if nodes and model.planned is not None and model.planned.spares:
            raise BadRequest(f"model {name}: spares are not placed on nodes: declare 'gpus' by type, or no 'spares'")


def _group_demands(group: PlanningGroup, demands: Mapping[str, ModelDemand]) -> dict[str, ModelDemand]:
    return {name: demands[name] for name in group.ready}


def _remaining_budget(room: GpuBudget, outcome: PlanningOutcome) -> GpuBudget:
    options = {name: (option.gpu, option.gpus) for name, option in outcome.solver.frame.network.options.items()}
    return room.subtract_solution(outcome.solution, outcome.places, options)


def _typed_nodes(gpus: Mapping[str, GpuType], nodes: Mapping[str, DeclaredNode]) -> dict[str, DeclaredNode]:
    """Return the nodes with their GPU type, optional if unique."""
    only = next(iter(gpus)) if len(gpus) == 1 else ""
    return {name: msgspec.structs.replace(node, gpu=node.gpu or only) for name, node in nodes.items()}


def _gpu_budget(gpus: Mapping[str, GpuType], nodes: Mapping[str, DeclaredNode]) -> GpuBudget:
    there = {name: SolverNode(node.gpus, node.gpu) for name, node in nodes.items()}
    if gpus:
        return GpuBudget({name: kind.count for name, kind in gpus.items()}, there)
    if not there:
        return GpuBudget(None, {})
    counts: dict[str, int] = {}
    for node in there.values():
        counts[node.gpu] = counts.get(node.gpu, 0) + node.gpus
    return GpuBudget(counts, there)


def _group_models(ready: Mapping[str, ModelInputs]) -> list[PlanningGroup]:
    """Group models that are planned together: first those for a rate, then those for the remaining GPUs."""
    found = []
    for goal in (GPUS, THROUGHPUT):
        mine = {name: each for name, each in ready.items() if each.asked.goal == goal}
        whole = {name: each for name, each in mine.items() if not (each.asked.cells or each.asked.policy)}
        celled = [PlanningGroup({name: each}) for name, each in mine.items() if each.asked.cells or each.asked.policy]
        if goal == THROUGHPUT and celled and len(mine) > 1:
            raise BadRequest(
                f"model {next(iter(celled[0].ready))}: cells and policies with goal {THROUGHPUT!r} take all GPUs "
                f"that are left: plan the other models for a rate, with goal {GPUS!r}"
            )
        found += [*([PlanningGroup(whole)] if whole else []), *celled]
    for group in found:
        for name, each in group.ready.items():
            strangers = [owner for owner in each.model.shares.values() if owner not in group.ready]
            if strangers:
                raise BadRequest(
                    f"model {name}: shares with {strangers[0]}, which is planned for another goal or in cells: give "
                    "both the same goal, and no cells"
                )
    return found
