"""Simulation of a plan and its requests: latencies, throughput, utilisation, bottleneck."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, cast

from omnibus.executor.sim.distributions import Draw
from omnibus.executor.sim.request import SimulatedRequest
from omnibus.plan_goals import ModelGoals
from omnibus_planner.simulate.agenda import Agenda
from omnibus_planner.simulate.arrivals import Arrival
from omnibus_planner.simulate.cluster import AdmissionLimits, RoutingRules, SimulatedCluster, SimulatedModel
from omnibus_planner.simulate.executors import RequestExecutors
from omnibus_planner.simulate.links import Links, NodeNetwork
from omnibus_planner.simulate.observed import ObservedRequest
from omnibus_planner.simulate.outcome import SimulationOutcome
from omnibus_planner.simulate.report import Observations, build_outcome

#: Fraction of the time before observation starts: executors fill up first.
WARM_UP_FRACTION = 0.15
#: Requests that a core simulates in a second, about. Budgets are counts of requests based on it, equal on every
#: machine.
REQUESTS_PER_SECOND = 2000


class SimulatedPlan(NamedTuple):
    """A plan to simulate: models, goals by model, limits, links between nodes, routing."""

    models: Mapping[str, SimulatedModel]
    goals: Mapping[str, ModelGoals] = {}
    limits: AdmissionLimits = AdmissionLimits()
    links: Links | None = None
    rules: RoutingRules = RoutingRules()


def simulate_plan(
    plan: SimulatedPlan,
    arrivals: Iterable[Arrival],
    seconds: float,
    *,
    seed: int = 1,
    warm_up: float = WARM_UP_FRACTION,
) -> SimulationOutcome:
    """Run ``plan`` with sorted ``arrivals`` for ``seconds``.

    It then waits for requests in progress. The same input has the same result. Raises ``BadRequest`` for a request that
    the plan has no path for.
    """
    run = PlanSimulation(plan, seconds, seconds * warm_up, seed)
    run.send_requests(arrivals)
    return build_outcome(run.cluster, run.seen, plan.goals)


class PlanSimulation:
    """One simulation of ``plan``, observed from virtual second ``warm`` to ``seconds``.

    ``cluster`` contains the executors, and ``seen`` the observations.
    """

    def __init__(self, plan: SimulatedPlan, seconds: float, warm: float, seed: int) -> None:
        self.agenda = Agenda()
        self.cluster = SimulatedCluster(self.agenda, plan.models, plan.limits, seed, plan.rules)
        self.seen = Observations(warm, seconds)
        self._network = NodeNetwork(self.agenda, plan.links or Links())
        self._seed = seed
        self._count = 0

    def send_requests(self, arrivals: Iterable[Arrival]) -> None:
        agenda, seen = self.agenda, self.seen
        marked = False
        for arrival in arrivals:
            if arrival.at > seen.end:
                break
            if not marked and arrival.at >= seen.warm:
                agenda.run_until(seen.warm)
                seen.mark_busy(self.cluster)
                marked = True
            agenda.run_until(arrival.at)
            self._send(arrival)
        if not marked:
            agenda.run_until(seen.warm)
            seen.mark_busy(self.cluster)
        agenda.run_until(seen.end)
        seen.note_end(self.cluster)
        agenda.run_until(seen.end + self.cluster.limits.deadline)

    def _send(self, arrival: Arrival) -> None:
        model = self.cluster.models[arrival.model]
        loads = model.devices.role_loads(frozenset(arrival.kind.split("+")), arrival.sizes)
        choice = self.cluster.choose_executors(arrival.model, arrival.kind, loads)
        self._count += 1
        self.seen.note_arrival(arrival, choice.planned, refused=choice.executors is None)
        if choice.executors is None:
            return
        route = RequestExecutors(
            self.cluster,
            self._network,
            arrival.model,
            arrival.kind,
            choice.path,
            choice.executors,
            loads,
            self._finish,
        )
        draw = Draw(self._seed, "request", self._count)
        request = ObservedRequest(route, arrival.model, arrival.kind, loads, draw, arrival.at, choice.planned.name)
        if model.devices.overhead:
            self.agenda.add(arrival.at + model.devices.overhead, request.start_encoders)
        else:
            request.start_encoders(arrival.at)

    def _finish(self, request: SimulatedRequest, at: float) -> None:
        self.seen.note_done(cast(ObservedRequest, request), at)
