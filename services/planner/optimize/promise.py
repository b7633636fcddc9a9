"""Plans are simulated before they are promised: solve, simulate, correct the seconds of roles, solve again.

Seconds per request add up over the roles of an option as far as the solver knows. In an executor they do not quite: a
language model with few sequences batches less, components that take turns make each other wait, and roles that nobody
measured are guesses, of which the best of many looks better than it is. So each option of a plan is simulated with the
roles that the plan gives it, and what that takes, relative to the sum, corrects their seconds. This ends when promise
and simulation agree, or with the best of a few rounds, which then promises what the simulation served. Plans by the
rules of others are simulated as well where they may serve more: the best plan is never worse than one of them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple

import msgspec

from omnibus.cells import base_option
from omnibus.errors import BadRequest
from omnibus.plan import ModelPlan
from omnibus.plan_score import LearnedOption
from services.planner.optimize.cell_plans import divide_into_cells
from services.planner.optimize.demand import ModelDemand
from services.planner.optimize.goodput_search import Goodput, GoodputSearch
from services.planner.optimize.load import Loads
from services.planner.optimize.model_inputs import ModelInputs
from services.planner.optimize.planner import Planner
from services.planner.optimize.result import PlanningResult
from services.planner.optimize.simulated import (
    calibrated_devices,
    learned_devices,
    simulated_models,
    simulation_links,
)
from services.planner.optimize.spares import without_spares
from services.planner.simulate.arrivals import TypeRate, even_arrivals, poisson_arrivals
from services.planner.simulate.devices import ModelDevices
from services.planner.simulate.outcome import SimulationOutcome
from services.planner.simulate.run import REQUESTS_PER_SECOND, SimulatedPlan, simulate_plan

#: Promise and simulation agree when they differ by no more than this part.
AGREEMENT_FRACTION = 0.05
#: Most rounds of solving and simulating.
MAX_ROUNDS = 6
#: Requests of a simulation, at least and at most, and the seconds in which queues that grow are to be seen: a few
#: answers after each other.
_MIN_REQUESTS, _MAX_REQUESTS, _GROWTH_SECONDS = 2500, 10_000, 40.0
#: Requests of a simulation that is to say a 99th percentile.
_TAIL_REQUESTS = 600
#: Options that are busy for less than this part of their time are not corrected: nothing depends on them.
_MIN_CORRECTED_LOAD = 0.2
#: One round changes seconds by no more than this factor.
_MAX_FACTOR = 2.0


class SimulatedPromise(NamedTuple):
    """Outcome of simulating a plan: the share of the promise that it serves (1: all of it), and the figures."""

    served: float
    outcome: SimulationOutcome

    @property
    def agrees(self) -> bool:
        return abs(self.served - 1.0) <= AGREEMENT_FRACTION


class PromiseChecker:
    """Simulates plans of ``planner``. Devices follow from its profiles, once, and from factors that it has learned."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self._turn = Lock()  # seconds change between plans, not between the rounds of one
        self._calibrated: dict[str, ModelDevices] = {}
        self._devices: dict[str, ModelDevices] = {}

    @property
    def devices(self) -> Mapping[str, ModelDevices]:
        """Devices of each model. Raises ``BadRequest`` for a component that was never measured."""
        inputs = self.planner.inputs
        if not self._calibrated:
            self._calibrated = {name: calibrated_devices(ready) for name, ready in inputs.items()}
        if not self._devices:
            self._devices = {name: learned_devices(each, inputs[name]) for name, each in self._calibrated.items()}
        return self._devices

    def apply_learned(self, learned: Mapping[str, Mapping[str, LearnedOption]]) -> None:
        """From now on plan and simulate with the seconds of options times ``learned`` factors, by model and option.

        Nothing is calibrated again. Waits for a plan that is being made.
        """
        with self._turn:
            self.planner.apply_learned(learned)
            self._devices = {}

    def plan(
        self, load: Loads | None = None, running: Mapping[str, ModelPlan] | None = None, *, within: float
    ) -> PlanningResult:
        """The best deployment whose promise a simulation confirms, as ``Planner.plan`` finds it.

        Rounds begin until they have simulated ``within`` times ``REQUESTS_PER_SECOND`` requests: a count, so that the
        same question has the same answer on each machine and under each load. What cannot be simulated is promised as
        it was solved; its explanation says why.
        """
        with self._turn:
            return self._plan_in_rounds(load, running or {}, within)

    def _plan_in_rounds(self, load: Loads | None, running: Mapping[str, ModelPlan], within: float) -> PlanningResult:
        try:
            _ = self.devices
        except BadRequest as error:
            return _explain_promise(self.planner.plan(load, running), None, 0, error.message)
        baselines = self.planner.plan_baselines(load) if within > 0 else {}  # before seconds are corrected
        for inputs in self.planner.inputs.values():
            inputs.costs.corrections.penalise_unmeasured()
        found, left = list[tuple[PlanningResult, SimulatedPromise]](), within * REQUESTS_PER_SECOND
        while len(found) < MAX_ROUNDS:
            result = self.planner.plan(load, running, explain=False)
            promise = self.simulate(result, load)
            found.append((result, promise))
            left -= sum(each.came for each in promise.outcome.types)
            if promise.agrees or left <= 0:
                break
            self._correct_seconds(result, promise, load)
        rounds, policy = len(found), ""
        best, promise = max(found, key=lambda each: _served_rate(*each))
        # Where something runs, a plan that does not reckon with it has to be better by more than figures err.
        better = self._find_better(baselines, found, load, AGREEMENT_FRACTION if running else 0.0)
        if better is not None:
            policy, best, promise = better
        results = [best, *(each for each, _ in found), *baselines.values()]
        goodput = self._search_goodput(results, load, within, AGREEMENT_FRACTION if running else 0.0)
        if goodput is not None and goodput.result is not best:
            policy, best = "", goodput.result
            promise = self.simulate(best, load)
        whole = msgspec.structs.replace(best, explain=best.why() if best.why else best.explain, why=None)
        return _explain_promise(whole, promise, rounds, policy=policy, goodput=goodput)

    def _search_goodput(
        self, results: Sequence[PlanningResult], load: Loads | None, within: float, margin: float
    ) -> Goodput | None:
        """The plan that serves most within the goals, the first of ``results`` unless another is better by ``margin``.

        None without goals, and where several models, cells or nodes make it another question.
        """
        if not GoodputSearch.applies_to(self.planner):
            return None
        name, demand = next(iter(self.planner.resolve_demands(load).items()))
        inputs = self.planner.inputs[name]
        goals = {name: inputs.asked.goals.active_goals()}

        def simulable(result: PlanningResult) -> SimulatedPlan:
            return self._simulated_plan(result.models, result.explain)._replace(goals=goals)

        search = GoodputSearch(
            self.planner, load, lambda rate: list(_type_rates(name, inputs, demand, rate)), simulable, within
        )
        return search.find_best(results, margin)

    def _find_better(
        self,
        baselines: Mapping[str, PlanningResult],
        found: Sequence[tuple[PlanningResult, SimulatedPromise]],
        load: Loads | None,
        margin: float,
    ) -> tuple[str, PlanningResult, SimulatedPromise] | None:
        """The policy whose plan serves most, more than any of ``found`` by ``margin``; None when there is none."""
        most, better = max(_served_rate(*each) for each in found) * (1 + margin), None
        known = [result.models for result, _ in found]
        for policy, result in baselines.items():
            if sum(result.capacity.values()) <= most or result.models in known:
                continue
            promise = self.simulate(result, load)
            if _served_rate(result, promise) > most:
                most, better = _served_rate(result, promise), (policy, result, promise)
        return better

    def estimate_gain(self, rerouted: PlanningResult, best: PlanningResult, load: Loads) -> tuple[float, float]:
        """The part that ``best`` serves more than ``rerouted``, both as simulated, and the part by which that may err.

        Both are pools of executors, also where ``best`` is in cells: other paths are found for all executors together.
        Raises ``BadRequest`` for what cannot be simulated.
        """
        pool = msgspec.structs.replace(best, cells={})
        kept, new = self.simulate(rerouted, load), self.simulate(pool, load)
        before = sum(rerouted.capacity.values()) * kept.served
        after = sum(best.capacity.values()) * new.served
        error = max(AGREEMENT_FRACTION, abs(new.served - 1.0))
        return (after / before - 1.0 if before > 0 else math.inf), error

    def simulate(self, result: PlanningResult, load: Loads | None = None) -> SimulatedPromise:
        """Simulate ``result`` at the rates that it promises, each cell by itself.

        Raises ``BadRequest`` for what cannot be simulated.
        """
        return self.simulate_models(
            without_spares(divide_into_cells(result, {})), result.capacity, load, result.explain
        )

    def simulate_models(
        self,
        plans: Mapping[str, ModelPlan],
        rates: Mapping[str, float],
        load: Loads | None = None,
        explain: Mapping[str, Any] | None = None,
    ) -> SimulatedPromise:
        """Simulate ``plans`` at ``rates``, req/s by model, with the mix of ``load``."""
        types = self._known_types(plans, rates, load)
        total = sum(each.rate for each in types)
        seconds = max(_MIN_REQUESTS / total, min(_GROWTH_SECONDS, _MAX_REQUESTS / total))
        plan = self._simulated_plan(plans, explain or {})
        outcome = simulate_plan(plan, even_arrivals(types, seconds), seconds)
        load_max = max((each.load for each in outcome.options), default=0.0)
        served = 1.0 / load_max if load_max > 0 else 1.0
        lost = outcome.carried < 1.0 - AGREEMENT_FRACTION and seconds >= _GROWTH_SECONDS
        return SimulatedPromise(min(served, outcome.carried) if lost else served, outcome)

    def predict_p99(self, result: PlanningResult, load: Loads) -> float:
        """Return the 99th percentile of seconds that requests take, of those that come at random at the rates of
        ``load``. Raises ``BadRequest`` for what cannot be simulated."""
        types = self._known_types(result.models, {name: each.rate for name, each in load.items()}, load)
        seconds = _TAIL_REQUESTS / sum(each.rate for each in types)
        outcome = simulate_plan(
            self._simulated_plan(without_spares(result.models), result.explain),
            poisson_arrivals(types, seconds),
            seconds,
        )
        refused = sum(each.refused for each in outcome.types)
        return math.inf if refused else outcome.percentiles["done"]["0.99"]

    def _known_types(
        self, plans: Mapping[str, ModelPlan], rates: Mapping[str, float], load: Loads | None
    ) -> list[TypeRate]:
        """Request types of the models of ``plans`` that are planned. Raises ``BadRequest`` where nothing comes."""
        inputs, demands = self.planner.inputs, self.planner.resolve_demands(load)
        found = [
            each
            for name in plans
            if name in inputs
            for each in _type_rates(name, inputs[name], demands[name], rates.get(name, 0.0))
        ]
        if not found:
            raise BadRequest("there is nothing to simulate: the plan serves no requests")
        return found

    def _simulated_plan(self, plans: Mapping[str, ModelPlan], explain: Mapping[str, Any]) -> SimulatedPlan:
        inputs = self.planner.inputs
        known = {name: plan for name, plan in plans.items() if name in inputs}
        return SimulatedPlan(
            simulated_models(inputs, known, self.devices, explain), links=simulation_links(self.planner.nodes)
        )

    def _correct_seconds(self, result: PlanningResult, promise: SimulatedPromise, load: Loads | None) -> None:
        """Make the seconds of roles add up to what the simulation found of each option."""
        simulated = _option_loads(divide_into_cells(result, {}), promise.outcome)
        inputs, demands = self.planner.inputs, self.planner.resolve_demands(load)
        work: dict[tuple[str, str], float] = {}
        roles: dict[tuple[str, str], list[_RoleWork]] = {}
        for name, plan in result.models.items():
            for stop in _plan_stops(inputs[name], plan, demands[name], result.capacity[name]):
                key = _executors_of(plan, name, stop.option)
                running = result.models[key[0]].options[key[1]]
                work[key] = work.get(key, 0.0) + stop.work / (running.replicas - running.spare_count)
                roles.setdefault(key, []).append(stop)
        for key, summed in work.items():
            found = simulated.get(key, 0.0)
            if min(summed, found) < _MIN_CORRECTED_LOAD:
                continue
            factor = min(_MAX_FACTOR, max(1 / _MAX_FACTOR, found / summed))
            for name in dict.fromkeys(stop.model for stop in roles[key]):
                own = [stop for stop in roles[key] if stop.model == name]
                for option in dict.fromkeys(stop.option for stop in own):
                    changed = [(stop.kind, stop.role) for stop in own if stop.option == option]
                    inputs[name].costs.corrections.correct_roles(option, dict.fromkeys(changed), factor)


class _RoleWork(NamedTuple):
    """Work per second, in seconds of a replica, of one role of one request type."""

    model: str
    option: str
    kind: str
    role: frozenset[str]
    work: float


def _type_rates(name: str, ready: ModelInputs, demand: ModelDemand, rate: float) -> Iterator[TypeRate]:
    for kind, share in demand.mixes[0].items():
        if share > 0 and rate > 0:
            sizes = {**ready.costs.type_quantities(kind), **demand.quantities.get(kind, {})}
            yield TypeRate(name, kind, share * rate, sizes)


def _plan_stops(ready: ModelInputs, plan: ModelPlan, demand: ModelDemand, rate: float) -> Iterator[_RoleWork]:
    """Work that requests bring to the options of ``plan`` at ``rate``, as the solver adds it up."""
    seconds = ready.costs.seconds_per_request(demand.quantities)
    for kind, share in demand.mixes[0].items():
        paths = plan.paths_for(frozenset(kind.split("+"))) if share > 0 else ()
        total = sum(path.rate for path in paths)
        for path in paths if total > 0 else ():
            for option in dict.fromkeys(path.options.values()):
                role = tuple(part for part in ready.model.components if path.options.get(part) == option)
                each = seconds(kind, option, role) or 0.0
                yield _RoleWork(ready.name, option, kind, frozenset(role), each * share * rate * path.rate / total)


def _option_loads(plans: Mapping[str, ModelPlan], outcome: SimulationOutcome) -> dict[tuple[str, str], float]:
    """Mean load of the executors of each option of ``plans``, those of all cells together, by model and option."""
    sums, counts = dict[tuple[str, str], float](), dict[tuple[str, str], int]()
    for each in outcome.options:
        key = each.model, base_option(plans[each.model], each.option)
        sums[key] = sums.get(key, 0.0) + each.load * each.replicas
        counts[key] = counts.get(key, 0) + each.replicas
    return {key: total / counts[key] for key, total in sums.items() if counts[key]}


def _executors_of(plan: ModelPlan, model: str, option: str) -> tuple[str, str]:
    owner, _, own = plan.options[option].of.rpartition("/")
    return (owner, own) if owner else (model, option)


def _served_rate(result: PlanningResult, promise: SimulatedPromise) -> float:
    """Rate by which rounds are compared: what the simulation served of all models together."""
    return sum(result.capacity.values()) * min(1.0, promise.served)


def _explain_promise(
    result: PlanningResult,
    promise: SimulatedPromise | None,
    rounds: int,
    fault: str = "",
    policy: str = "",
    goodput: Goodput | None = None,
) -> PlanningResult:
    """``result`` with what was promised by the solver, what was simulated, in how many rounds, by which policy, and how
    much of it within the goals."""
    planned = dict(result.explain.get("planned", {}))
    models, capacity = dict(planned.get("models", {})), dict(result.capacity)
    for name in models:
        told: dict[str, Any] = {"solver": result.capacity[name], "rounds": rounds}
        if promise is None:
            told["fault"] = fault
        else:
            told |= {"simulated": result.capacity[name] * promise.served, "agrees": promise.agrees}
            if policy:
                told["policy"] = policy
            if goodput is not None:
                told["goodput"] = goodput.rate
            if not promise.agrees:
                capacity[name] = told["simulated"]
        models[name] = {**models[name], "capacity": capacity[name], "promise": told}
    explain = {**result.explain, "planned": {**planned, "models": models}} if planned else result.explain
    return msgspec.structs.replace(result, explain=explain, capacity=capacity)
