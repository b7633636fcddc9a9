"""Plans are simulated before they are promised: solve, simulate, correct seconds, solve again.

For the solver, seconds per request add up over the roles of an option. In an executor they do not quite. A language
model with few sequences batches less, and components that take turns wait for each other. Roles that were not measured
are estimates, and the best of many estimates is too optimistic. So each option of a plan is simulated with the roles
that the plan gives it. The ratio of simulated seconds to the sum corrects their seconds.

The rounds end when promise and simulation agree. Otherwise the best of a few rounds promises the rate that its
simulation served. Plans by the rules of others are simulated too if they may serve more, so the best plan is never
worse than these. Among near-equal plans, the one that serves most in overload is chosen (``overload.py``). A plan with
goals may bound the requests in flight.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from threading import Lock
from typing import Any, NamedTuple

import msgspec

from omnibus.cells import base_option
from omnibus.errors import BadRequest
from omnibus.plan import ModelPlan
from omnibus.plan_score import LearnedOption
from omnibus_planner.optimize.cell_plans import divide_into_cells
from omnibus_planner.optimize.demand import ModelDemand
from omnibus_planner.optimize.goodput_search import Goodput, GoodputSearch, Traffic
from omnibus_planner.optimize.load import Loads
from omnibus_planner.optimize.model_inputs import ModelInputs
from omnibus_planner.optimize.overload import (
    CURVE_LOADS,
    CURVE_WARM_UP,
    NEAR_FRACTION,
    choose_credits,
    credit_ladder,
    curve_requests,
    executors_of,
    find_residence,
    model_curves,
    most_robust,
    near_plans,
    with_credits,
)
from omnibus_planner.optimize.planner import Planner
from omnibus_planner.optimize.result import PlanningResult
from omnibus_planner.optimize.simulated import (
    calibrated_devices,
    learned_devices,
    simulated_models,
    simulation_links,
)
from omnibus_planner.optimize.spares import without_spares
from omnibus_planner.simulate.arrivals import Arrival, TypeRate, even_arrivals, poisson_arrivals
from omnibus_planner.simulate.devices import ModelDevices
from omnibus_planner.simulate.outcome import SimulationOutcome
from omnibus_planner.simulate.run import REQUESTS_PER_SECOND, SimulatedPlan, simulate_plan

#: Largest relative difference at which promise and simulation agree.
AGREEMENT_FRACTION = 0.05
#: Most rounds of solving and simulating.
MAX_ROUNDS = 6
#: Fewest and most requests of a simulation, and the seconds in which growing queues must become visible: a few
#: successive answers.
_MIN_REQUESTS, _MAX_REQUESTS, _GROWTH_SECONDS = 2500, 10_000, 40.0
#: Requests of a simulation that estimates a 99th percentile.
_TAIL_REQUESTS = 600
#: Options with a lower utilisation are not corrected: nothing depends on them.
_MIN_CORRECTED_LOAD = 0.2
#: Largest factor by which one round changes seconds.
_MAX_FACTOR = 2.0


class SimulatedPromise(NamedTuple):
    """Result of simulating a plan: the served share of the promise, and the figures.

    A share of 1 is all of it.
    """

    served: float
    outcome: SimulationOutcome

    @property
    def agrees(self) -> bool:
        return abs(self.served - 1.0) <= AGREEMENT_FRACTION


class _Candidate(NamedTuple):
    """A plan, its simulation, and the policy that made it; empty for the planner's own."""

    result: PlanningResult
    promise: SimulatedPromise
    policy: str = ""

    @property
    def served_rate(self) -> float:
        """Simulated rate of all models together."""
        return _served_rate(self.result, self.promise)


class PromiseChecker:
    """Simulates plans of ``planner``.

    Devices are calibrated once from its profiles, then scaled by the learned factors. ``traffic`` are the requests that
    plans with goals are judged by; by default, their sizes vary around the means, and they come at random.
    """

    def __init__(self, planner: Planner, traffic: Traffic | None = None) -> None:
        self.planner = planner
        self._traffic = traffic
        self._turn = Lock()  # seconds change between plans, not between rounds of a plan
        self._calibrated: dict[str, ModelDevices] = {}
        self._devices: dict[str, ModelDevices] = {}

    @property
    def devices(self) -> Mapping[str, ModelDevices]:
        """Return the devices of each model. Raises ``BadRequest`` for a component that was never measured."""
        inputs = self.planner.inputs
        if not self._calibrated:
            self._calibrated = {name: calibrated_devices(ready) for name, ready in inputs.items()}
        if not self._devices:
            self._devices = {name: learned_devices(each, inputs[name]) for name, each in self._calibrated.items()}
        return self._devices

    def apply_learned(self, learned: Mapping[str, Mapping[str, LearnedOption]]) -> None:
        """Replace the factors on seconds of options, for plans and simulations.

        ``learned`` has them by model and option. Calibration is not repeated. Waits until a running plan is complete.
        """
        with self._turn:
            self.planner.apply_learned(learned)
            self._devices = {}

    def plan(
        self, load: Loads | None = None, running: Mapping[str, ModelPlan] | None = None, *, within: float
    ) -> PlanningResult:
        """Find the best deployment whose promise a simulation confirms, as ``Planner.plan`` does.

        New rounds begin until they have simulated ``within`` times ``REQUESTS_PER_SECOND`` requests. This is a count,
        so that the same problem has the same result on each machine and under each load. A plan that cannot be
        simulated is promised as solved, and its explanation contains the reason.
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
        # If something runs, a plan that ignores it must be better by more than the error of the figures.
        margin, requests = AGREEMENT_FRACTION if running else 0.0, curve_requests(within * REQUESTS_PER_SECOND)
        candidates = [_Candidate(*each) for each in found]
        candidate = self._choose_robust(
            [*candidates, *self._find_better(baselines, found, load, margin)], load, requests, margin
        )
        results = [candidate.result, *(each for each, _ in found), *baselines.values()]
        goodput = self._search_goodput(results, load, within, margin)
        if goodput is not None and goodput.result is not candidate.result:
            candidate = _Candidate(goodput.result, self.simulate(goodput.result, load))
        best, promise = candidate.result, candidate.promise
        whole = msgspec.structs.replace(best, explain=best.why() if best.why else best.explain, why=None)
        whole = _explain_promise(whole, promise, len(found), policy=candidate.policy, goodput=goodput)
        return self._with_curve(whole, load, requests, goodput)

    def _choose_robust(
        self, candidates: Sequence[_Candidate], load: Loads | None, requests: int, margin: float
    ) -> _Candidate:
        """Return the candidate that serves most; among near-equal ones, the best in overload."""
        near = near_plans(candidates, lambda each: each.served_rate)
        different = [
            each for at, each in enumerate(near) if each.result.models not in [x.result.models for x in near[:at]]
        ]
        if not requests:
            return different[0]
        rates = _promised_rates(different[0].result, different[0].promise)

        def goodput_at(each: _Candidate, factor: float) -> float:
            return self._simulate_load(each.result, rates, factor, load, requests).goodput

        return most_robust(different, goodput_at, margin)

    def _simulate_load(
        self, result: PlanningResult, rates: Mapping[str, float], factor: float, load: Loads | None, requests: int
    ) -> SimulationOutcome:
        """Simulate ``result`` at ``factor`` times ``rates``, in req/s by model."""
        plans = without_spares(divide_into_cells(result, {}))
        types = self._known_types(plans, {name: factor * rate for name, rate in rates.items()}, load)
        goals = {name: each.asked.goals.of_model() for name, each in self.planner.inputs.items()}
        plan, seconds = self._simulated_plan(plans, result.explain), requests / sum(each.rate for each in types)
        return simulate_plan(plan._replace(goals=goals), even_arrivals(types, seconds), seconds, warm_up=CURVE_WARM_UP)

    def _with_curve(
        self, result: PlanningResult, load: Loads | None, requests: int, goodput: Goodput | None
    ) -> PlanningResult:
        """Bound the requests in flight of ``result`` if that serves more in overload; explain its goodput by load.

        A bound must keep ``goodput``, if it is known. It is for random arrivals, not for given traffic: longer bursts
        than these would be rejected.
        """
        explanation = result.explain.get("planned", {})
        if not requests or not explanation:
            return result
        bounded = [result]

        @cache
        def simulate(number: int, factor: float) -> SimulationOutcome:
            return self._simulate_load(bounded[number], result.capacity, factor, load, requests)

        if self._traffic is None:
            bounded += self._bounded_plans(result, load, simulate(0, CURVE_LOADS[0]))
        best = choose_credits(
            len(bounded),
            lambda number, factor: simulate(number, factor).goodput,
            lambda number: goodput is None or goodput.keeps_rate(bounded[number]),
        )
        outcomes = {factor: simulate(best, factor) for factor in CURVE_LOADS}
        models = dict(explanation["models"])
        for name, curve in model_curves(result.capacity, outcomes).items():
            promise = {**models[name]["promise"], "curve": [point._asdict() for point in curve]}
            models[name] = {**models[name], "promise": promise}
        explain = {**result.explain, "planned": {**explanation, "models": models}}
        return msgspec.structs.replace(bounded[best], explain=explain)

    def _bounded_plans(
        self, result: PlanningResult, load: Loads | None, usual: SimulationOutcome
    ) -> Iterator[PlanningResult]:
        """Yield ``result`` with bounds of requests in flight, the largest first; none without goals.

        ``usual`` is its outcome before overload.
        """
        goals = {name: each.asked.goals.of_model() for name, each in self.planner.inputs.items()}
        residences = {(each.model, each.kind): find_residence(goals[each.model], each) for each in usual.types}
        plans = without_spares(result.models)
        if any(residences.values()):
            for credits in credit_ladder(plans, self._known_types(plans, result.capacity, load), residences):
                cells = {
                    name: tuple(with_credits({name: cell}, credits)[name] for cell in own)
                    for name, own in result.cells.items()
                }
                yield msgspec.structs.replace(result, models=with_credits(result.models, credits), cells=cells)

    def _search_goodput(
        self, results: Sequence[PlanningResult], load: Loads | None, within: float, margin: float
    ) -> Goodput | None:
        """Find the plan that serves most within the goals.

        It is the first of ``results`` unless another is better by ``margin``. Returns None without goals, and for
        several models, cells or nodes, which the search does not support.
        """
        if not GoodputSearch.applies_to(self.planner):
            return None
        name, demand = next(iter(self.planner.resolve_demands(load).items()))
        inputs = self.planner.inputs[name]
        goals = {name: inputs.asked.goals.of_model()}

        def simulable(result: PlanningResult) -> SimulatedPlan:
            return self._simulated_plan(result.models, result.explain)._replace(goals=goals)

        def random_traffic(rate: float, seconds: float) -> Iterator[Arrival]:
            return poisson_arrivals(list(_type_rates(name, inputs, demand, rate)), seconds)

        search = GoodputSearch(self.planner, load, self._traffic or random_traffic, simulable, within)
        return search.find_best(results, margin)

    def _find_better(
        self,
        baselines: Mapping[str, PlanningResult],
        found: Sequence[tuple[PlanningResult, SimulatedPromise]],
        load: Loads | None,
        margin: float,
    ) -> Iterator[_Candidate]:
        """Yield plans by the rules of others.

        They serve about as much as the best of ``found``, or more; they must serve more by ``margin`` if it is set.
        """
        most = max(_served_rate(*each) for each in found) * (1 + margin if margin else 1 - NEAR_FRACTION)
        known = [result.models for result, _ in found]
        for policy, result in baselines.items():
            if sum(result.capacity.values()) <= most or result.models in known:
                continue
            promise = self.simulate(result, load)
            if _served_rate(result, promise) > most:
                yield _Candidate(result, promise, policy)

    def estimate_gain(self, rerouted: PlanningResult, best: PlanningResult, load: Loads) -> tuple[float, float]:
        """Return the simulated gain of ``best`` over ``rerouted``, and its error.

        Both are relative. Both count as pools of executors, even if ``best`` is in cells, because paths are solved for
        all executors together. Raises ``BadRequest`` for plans that cannot be simulated.
        """
        pool = msgspec.structs.replace(best, cells={})
        kept, new = self.simulate(rerouted, load), self.simulate(pool, load)
        before = sum(rerouted.capacity.values()) * kept.served
        after = sum(best.capacity.values()) * new.served
        error = max(AGREEMENT_FRACTION, abs(new.served - 1.0))
        return (after / before - 1.0 if before > 0 else math.inf), error

    def simulate(self, result: PlanningResult, load: Loads | None = None) -> SimulatedPromise:
        """Simulate ``result`` at its promised rates, each cell separately.

        Raises ``BadRequest`` for plans that cannot be simulated.
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
        """Simulate ``plans`` at ``rates``.

        ``rates`` are req/s by model, with the mix of ``load``.
        """
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
        """Return the simulated 99th percentile of the seconds of requests.

        They arrive at random, at the rates of ``load``. Raises ``BadRequest`` for plans that cannot be simulated.
        """
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
        """Return request types of planned models in ``plans``. Raises ``BadRequest`` if there are no requests."""
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
        """Correct the seconds of roles to the simulated load of each option."""
        simulated = _option_loads(divide_into_cells(result, {}), promise.outcome)
        inputs, demands = self.planner.inputs, self.planner.resolve_demands(load)
        work: dict[tuple[str, str], float] = {}
        roles: dict[tuple[str, str], list[_RoleWork]] = {}
        for name, plan in result.models.items():
            for stop in _plan_stops(inputs[name], plan, demands[name], result.capacity[name]):
                key = executors_of(plan, name, stop.option)
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


def _promised_rates(result: PlanningResult, promise: SimulatedPromise) -> dict[str, float]:
    """Return the promised req/s by model: the solver's, or those of the simulation if it does not agree."""
    return {name: rate * (1.0 if promise.agrees else promise.served) for name, rate in result.capacity.items()}


class _RoleWork(NamedTuple):
    """Work per second of one role, in seconds of a replica.

    A role belongs to one request type.
    """

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
    """Yield the work of requests on the options of ``plan``.

    It is the work at ``rate``, as the solver adds it up.
    """
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
    """Return the mean load of executors by model and option.

    It is the mean over all cells of ``plans``.
    """
    sums, counts = dict[tuple[str, str], float](), dict[tuple[str, str], int]()
    for each in outcome.options:
        key = each.model, base_option(plans[each.model], each.option)
        sums[key] = sums.get(key, 0.0) + each.load * each.replicas
        counts[key] = counts.get(key, 0) + each.replicas
    return {key: total / counts[key] for key, total in sums.items() if counts[key]}


def _served_rate(result: PlanningResult, promise: SimulatedPromise) -> float:
    """Return the rate that ranks rounds: the simulated rate of all models together."""
    return sum(result.capacity.values()) * min(1.0, promise.served)


def _explain_promise(
    result: PlanningResult,
    promise: SimulatedPromise | None,
    rounds: int,
    fault: str = "",
    policy: str = "",
    goodput: Goodput | None = None,
) -> PlanningResult:
    """Add the promise to the explanation of ``result``.

    It contains the solver's promise, the simulated rate, the number of rounds, the policy, and the rate within the
    goals.
    """
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
