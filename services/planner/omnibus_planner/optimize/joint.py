"""Models that are planned together: one problem for the solver, in which they share GPUs and executors."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from omnibus.errors import DeadlineExceeded
from omnibus_planner.declared.planned_spec import GPUS, THROUGHPUT
from omnibus_planner.optimize.demand import ModelDemand
from omnibus_planner.optimize.edge_sizes import TensorHop
from omnibus_planner.optimize.latency_goals import TailLimits, tail_limits
from omnibus_planner.optimize.model_inputs import ModelInputs
from omnibus_planner.solve import placement
from omnibus_planner.solve.constraints import Places, SolverNode, Terms
from omnibus_planner.solve.flow_network import Arc, Network
from omnibus_planner.solve.joint_solver import JointSolver
from omnibus_planner.solve.multi_model import JointModel, join_networks
from omnibus_planner.solve.placement import TrafficOf
from omnibus_planner.solve.problem import Infeasible
from omnibus_planner.solve.query import SolverAnswer
from omnibus_planner.solve.replan import replan_deployment
from omnibus_planner.solve.solution import Flow, Solution
from omnibus_planner.solve.solver import Solver
from omnibus_planner.solve.traffic import OptionTraffic

#: Time limit in seconds of one problem, for safety: branches end a search much sooner.
SOLVE_TIMEOUT_SECONDS = 60.0
#: Most replicas of an option when nothing else bounds them.
_MAX_REPLICAS = 64
#: Relative gain at which partial roles are worth it: their seconds are estimates, which err by as much.
_CLEAR_GAIN = 0.1
#: Arcs of the largest network that is also solved with partial roles.
_MAX_WHOLE_ARCS = 3000


class GpuBudget(NamedTuple):
    """Available GPUs by type (None: unlimited), and the nodes that contain them."""

    gpus: dict[str, int] | None
    nodes: dict[str, SolverNode]

    def subtract_solution(
        self, solution: Solution, places: Places, options: Mapping[str, tuple[str, int]]
    ) -> "GpuBudget":
        """Return the room left after ``solution``; ``options`` are GPU type and GPUs of one replica."""
        gpus, nodes = self.gpus, dict(self.nodes)
        if gpus is not None:
            gpus = dict(gpus)
            for name, count in solution.replicas.items():
                kind, each = options[name]
                gpus[kind] = max(0, gpus.get(kind, 0) - each * count)
        for name, there in places.items():
            for node, count in there.items():
                left = nodes[node].gpus - count * options[name][1]
                nodes[node] = msgspec.structs.replace(nodes[node], gpus=left)
        return GpuBudget(gpus, nodes)


class PlanningOutcome(NamedTuple):
    """Result for models that were planned together. Options and request types are ``model/name``.

    ``weights`` are each model's req/s at a rate of 1. ``goal`` differs from the requested one if the load exceeds the
    capacity of the GPUs. ``unserved`` are the components without an executor, by model. ``cells`` counts cells by size,
    and ``cell_solutions`` contains the deployment of one cell of each size. ``link`` is the pair of nodes with the link
    that limits the choice, or empty.
    """

    ready: Mapping[str, ModelInputs]
    demands: Mapping[str, ModelDemand]
    goal: str
    solver: Solver
    solution: Solution
    terms: Terms
    weights: dict[str, float]
    places: Places
    unserved: dict[str, tuple[str, ...]]
    tails: dict[str, TailLimits]
    cells: dict[int, int] = {}  # noqa: RUF012 never modified
    cell_solutions: Mapping[int, Solution] = {}
    link: tuple[str, ...] = ()

    def expected_rate(self, name: str) -> float:
        """Return the expected req/s of model ``name``, at most its capacity.

        It is the capacity if the expected rate is unknown.
        """
        most = self.solution.capacity * self.weights[name]
        return min(self.demands[name].rate or most, most)

    def expected_flow_rate(self, flow: Flow) -> float:
        """Return a path's req/s at the expected rate of its model."""
        name = flow.type.rpartition("/")[0]
        planned = self.solution.rate * self.weights[name]
        return flow.rate * self.expected_rate(name) / planned if planned > 0 else 0.0

    def expected_work(self) -> dict[str, float]:
        """Return each option's work at the expected rates, in seconds per second."""
        work: dict[str, float] = {}
        for flow in self.solution.flows:
            for option, seconds in zip(flow.options, flow.seconds, strict=True):
                work[option] = work.get(option, 0.0) + self.expected_flow_rate(flow) * seconds
        return work

    def sent_gb_s(self) -> float:
        """Return the GB/s between executors at the planned rate."""
        return sum(flow.rate * hop.gb for flow in self.solution.flows for hop in self.flow_hops(flow))

    def flow_hops(self, flow: Flow) -> Iterator[TensorHop]:
        """Yield the transfers of a request between the stops of this path."""
        return flow_hops(self.ready, flow)


class SolverQuestion(NamedTuple):
    """A problem for the solver."""

    solver: Solver
    terms: Terms
    weights: dict[str, float]
    tails: dict[str, TailLimits]


class PlanningGroup:
    """Plan ``ready`` together. Keeps the last network, which a new rate or mix can reuse."""

    def __init__(self, ready: Mapping[str, ModelInputs]) -> None:
        self.ready = dict(ready)
        first = next(iter(ready.values())).asked
        self.goal, self.cells, self.policy = first.goal, first.cells, first.policy
        self.same = {f"{name}/{lent}": lent for name, each in ready.items() for lent in each.lent}
        self._kept: dict[bool, tuple[object, Solver]] = {}

    def get_solver(self, demands: Mapping[str, ModelDemand], *, partial: bool = False) -> Solver:
        """Return the solver for these request types and sizes of requests.

        With ``partial``, an option may leave out components that it could run.
        """
        key = [
            (name, sorted(each.request_types), each.quantities, self.ready[name].costs.corrections.version)
            for name, each in sorted(demands.items())
        ]
        kept = self._kept.get(partial)
        if kept is None or kept[0] != key:
            parts = {}
            for name, ready in self.ready.items():
                demand = demands[name]
                network = ready.build_network(demand.request_types, demand.quantities, partial=partial)
                parts[name] = JointModel(network, 1.0)
            kept = self._kept[partial] = key, JointSolver(join_networks(parts, self.same))
        return kept[1]

    def _limit_traffic(self, question: SolverQuestion, most_gb_s: float | None) -> SolverQuestion:
        """Return ``question`` with at most ``most_gb_s`` between executors; None does not limit them."""
        if most_gb_s is None:
            return question
        network = question.solver.frame.network
        arc_gb = [self._received_gb(network, arc) for arc in network.arcs]
        return question._replace(solver=JointSolver(network, arc_gb, most_gb_s))

    def _received_gb(self, network: Network, arc: Arc) -> float:
        """Return the GB that a request's finished components send to those of ``arc``."""
        name, _, kind = network.types[arc.kind].rpartition("/")
        ready = self.ready[name]
        done = [part for at, part in enumerate(ready.model.components) if arc.tail >> at & 1]
        return sum(ready.edges.edge_gb(kind, one, other) for use in arc.uses for other in use.role for one in done)

    def solve(
        self,
        demands: Mapping[str, ModelDemand],
        running: Mapping[str, int],
        room: GpuBudget,
        *,
        only_running: bool = False,
        most_gb_s: float | None = None,
    ) -> PlanningOutcome:
        """Find the best deployment within ``room``; with ``only_running`` from options that are ``running``.

        Every component gets an executor if there are GPUs for it, even if no request is planned for it. Options run
        all components of a request that they can, unless a bound says that a plan in which they leave some out may be
        clearly better, and it is. Executors send each other at most ``most_gb_s``, if it is set. Raises ``Infeasible``
        and ``DeadlineExceeded``.
        """
        question = self._limit_traffic(self.build_question(demands, running, room), most_gb_s)
        outcome = self._solve_question(question, demands, running, only_running)
        if most_gb_s is not None:
            return outcome
        wider = self._find_partial_roles(question, outcome, demands)
        if wider is None:
            return outcome
        try:
            other = self._solve_question(wider, demands, running, only_running)
        except (Infeasible, DeadlineExceeded):
            return outcome
        return other if _is_clearly_better(other, outcome) else outcome

    def _find_partial_roles(
        self, question: SolverQuestion, outcome: PlanningOutcome, demands: Mapping[str, ModelDemand]
    ) -> SolverQuestion | None:
        """Return ``question`` with partial roles, if their bound is clearly above ``outcome``; else None."""
        if len(question.solver.frame.network.arcs) > _MAX_WHOLE_ARCS:
            return None
        solver, by_rate = self.get_solver(demands, partial=True), outcome.goal == THROUGHPUT
        bound = solver.fractional_bound(outcome.terms, by_rate=by_rate)
        value = outcome.solution.rate if by_rate else outcome.solution.cost
        return question._replace(solver=solver) if _is_clear_gain(bound, value, by_rate) else None

    def _solve_question(
        self,
        asked: SolverQuestion,
        demands: Mapping[str, ModelDemand],
        running: Mapping[str, int],
        only_running: bool,
    ) -> PlanningOutcome:
        if only_running:
            fresh = [name for name in asked.solver.frame.network.option_names if not running.get(name)]
            without = tuple({*asked.terms.without, *fresh})
            asked = asked._replace(terms=msgspec.structs.replace(asked.terms, without=without))
        measured = all(each.measured for each in demands.values())
        solver, terms = asked.solver, asked.terms
        unserved: dict[str, tuple[str, ...]] = {}
        try:
            goal, solution, places = self._solve_for_goal(solver, terms, measured)
        except Infeasible:
            if not terms.covers:
                raise
            terms = msgspec.structs.replace(terms, covers=())
            goal, solution, places = self._solve_for_goal(solver, terms, measured)
            unserved = self.missing_components(demands, solution)
        return PlanningOutcome(
            self.ready, demands, goal, solver, solution, terms, asked.weights, places, unserved, asked.tails
        )

    def route_running(
        self,
        demands: Mapping[str, ModelDemand],
        running: Mapping[str, int],
        room: GpuBudget,
        *,
        partial: bool = True,
        most_gb_s: float | None = None,
    ) -> PlanningOutcome:
        """Find the best paths over exactly the replicas that are ``running``.

        With ``partial``, options leave out components that they could run if that is clearly better. Executors send
        each other at most ``most_gb_s``, if it is set.
        """
        question = self._limit_traffic(self.build_question(demands, running, room), most_gb_s)
        outcome = self._route_question(question, demands, running, room)
        if not partial or len(question.solver.frame.network.arcs) > _MAX_WHOLE_ARCS:
            return outcome
        wider = self._limit_traffic(question._replace(solver=self.get_solver(demands, partial=True)), most_gb_s)
        other = self._route_question(wider, demands, running, room)
        return other if _is_clearly_better(other, outcome) else outcome

    def _route_question(
        self, question: SolverQuestion, demands: Mapping[str, ModelDemand], running: Mapping[str, int], room: GpuBudget
    ) -> PlanningOutcome:
        solver, terms, weights, found = question
        levels = {option: _extend_levels(each, running.get(option, 0)) for option, each in terms.admissible.items()}
        terms = msgspec.structs.replace(terms, admissible=levels, gpus=None, nodes={}, covers=())
        run = solver.create_run(terms)
        served = run.served_flows(run.running)
        worst = min(each.rate for each in served)
        answer = SolverAnswer(run.running, served, worst, worst, proven=True)
        solution = solver.build_solution(run, answer, "rate", worst, 0.0, settled=True)
        lacking = self.missing_components(demands, solution)
        places = self._place_running(solver, solution, room)
        return PlanningOutcome(
            self.ready, demands, THROUGHPUT, solver, solution, terms, weights, places, lacking, found
        )

    def _place_running(self, solver: Solver, solution: Solution, room: GpuBudget) -> Places:
        """Assign nodes to running replicas as a plan would.

        Their actual nodes are unknown. Empty if they do not fit.
        """
        options, traffic = solver.frame.network.options, self._option_traffic(solution)
        try:
            return placement.place_replicas(solution.replicas, options, room.nodes, traffic=traffic) or {}
        except DeadlineExceeded:
            return {}

    def build_question(
        self, demands: Mapping[str, ModelDemand], running: Mapping[str, int], room: GpuBudget
    ) -> SolverQuestion:
        """Build the problem for the solver. Raises ``Infeasible`` for goals that no option meets."""
        solver = self.get_solver(demands)
        found_tails = {name: tail_limits(ready, self._max_replicas(ready, room)) for name, ready in self.ready.items()}
        weights = {name: self._demand_weight(each) for name, each in demands.items()}
        terms = Terms(
            gpus=room.gpus,
            running=dict(running),
            without=tuple(f"{name}/{option}" for name, each in found_tails.items() for option in each.never),
            admissible={
                f"{name}/{option}": levels
                for name, each in found_tails.items()
                for option, levels in each.admissible.items()
            },
            scenarios=tuple(_rate_scenarios(demands, weights)),
            nodes=room.nodes,
            covers=tuple(group for _, _, group in self._idle_components(demands)),
            within=SOLVE_TIMEOUT_SECONDS,
        )
        self._check_tail_limits(demands, found_tails)
        return SolverQuestion(solver, terms, weights, found_tails)

    def _solve_for_goal(self, solver: Solver, terms: Terms, measured: bool) -> tuple[str, Solution, Places]:
        if self.goal == GPUS:
            try:
                return GPUS, *_solve_least_gpus(solver, terms, self._option_traffic)
            except Infeasible:
                if not measured or terms.gpus is None:
                    raise
        solution, places = (
            placement.most_within_nodes(solver, terms, self._option_traffic)
            if terms.nodes
            else (solver.solve_most(terms), {})
        )
        if solution.rate <= 0:
            raise Infeasible(f"{_describe_gpus(terms)} cannot hold an executor for each component that requests use")
        return THROUGHPUT, solution, places

    def _option_traffic(self, solution: Solution) -> OptionTraffic:
        """Return GB/s between options."""
        found: dict[tuple[str, str], float] = {}
        for flow in solution.flows:
            for hop in flow_hops(self.ready, flow):
                ends = flow.options[hop.source], flow.options[hop.target]
                found[ends] = found.get(ends, 0.0) + hop.gb * flow.rate
        return found

    def _demand_weight(self, each: ModelDemand) -> float:
        """Return the model's weight: with goal "throughput", a model without a rate counts as 1 req/s."""
        return each.wanted if self.goal == GPUS else each.wanted or 1.0

    def _max_replicas(self, ready: ModelInputs, room: GpuBudget) -> dict[str, int]:
        """Return the most replicas of each option that fit."""
        if room.gpus is None:
            return dict.fromkeys(ready.options, _MAX_REPLICAS)
        return {name: room.gpus.get(option.gpu, 0) // option.gpus for name, option in ready.options.items()}

    def _idle_components(self, demands: Mapping[str, ModelDemand]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Yield components without planned requests, and the options that run them."""
        for name, ready in self.ready.items():
            used = {part for kind in demands[name].request_types for part in kind.split("+")}
            for part in ready.model.components:
                if part not in used:
                    names = (f"{name}/{option}" for option in ready.options_running(part))
                    yield name, part, tuple(self.same.get(each, each) for each in names)

    def missing_components(self, demands: Mapping[str, ModelDemand], solution: Solution) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for name, part, options in self._idle_components(demands):
            if not any(solution.replicas.get(option) for option in options):
                found[name] = (*found.get(name, ()), part)
        return found

    def _check_tail_limits(self, demands: Mapping[str, ModelDemand], found: Mapping[str, TailLimits]) -> None:
        """Raise ``Infeasible`` if no option runs a component within the goals.

        The error contains the reasons.
        """
        for name, ready in self.ready.items():
            used = {part for kind in demands[name].request_types for part in kind.split("+")}
            for part in ready.model.components:
                runs = ready.options_running(part)
                never = found[name].never
                if part in used and runs and all(option in never for option in runs):
                    reasons = "; ".join(f"{option}: {never[option]}" for option in runs)
                    raise Infeasible(
                        f"model {name}: nothing runs {part} within the planned goals ({reasons}): allow more, or "
                        "measure a faster option"
                    )


def _is_clearly_better(other: PlanningOutcome, outcome: PlanningOutcome) -> bool:
    """Return True if ``other`` has the same goal, leaves nothing unserved that ``outcome`` serves, and is better."""
    if other.goal != outcome.goal or len(other.unserved) > len(outcome.unserved):
        return False
    if outcome.goal == THROUGHPUT:
        return _is_clear_gain(other.solution.rate, outcome.solution.rate, by_rate=True)
    return _is_clear_gain(other.solution.cost, outcome.solution.cost, by_rate=False)


def _is_clear_gain(value: float, before: float, by_rate: bool) -> bool:
    """Return True if a rate is clearly higher, or a cost clearly lower."""
    return value > before * (1 + _CLEAR_GAIN) if by_rate else value < before * (1 - _CLEAR_GAIN)


def flow_hops(ready: Mapping[str, ModelInputs], flow: Flow) -> Iterator[TensorHop]:
    """Yield the transfers of a request between the stops of a path."""
    name, _, kind = flow.type.rpartition("/")
    return ready[name].edges.path_hops(kind, flow.components)


def _solve_least_gpus(solver: Solver, terms: Terms, traffic_of: TrafficOf) -> tuple[Solution, Places]:
    if terms.nodes:
        return placement.least_within_nodes(solver, 1.0, terms, traffic_of)
    if not terms.running:
        return solver.solve_least(1.0, terms), {}
    try:
        return replan_deployment(solver, 1.0, dict(terms.running), terms), {}
    except DeadlineExceeded:
        return solver.solve_least(1.0, msgspec.structs.replace(terms, running=None)), {}


def _extend_levels(levels: tuple[float, ...], count: int) -> tuple[float, ...]:
    """Extend the admissible work to ``count`` replicas; those beyond the available room add none."""
    return levels + levels[-1:] * (count - len(levels))


def _rate_scenarios(demands: Mapping[str, ModelDemand], weights: Mapping[str, float]) -> Iterator[dict[str, float]]:
    """Yield req/s by request type over all models; a model with fewer mixes repeats its usual one."""
    for number in range(max(len(each.mixes) for each in demands.values())):
        yield {
            f"{name}/{kind}": share * weights[name]
            for name, each in demands.items()
            for kind, share in (each.mixes[number] if number < len(each.mixes) else each.mixes[0]).items()
            if share > 0
        }


def _describe_gpus(terms: Terms) -> str:
    have = terms.gpus if terms.gpus is not None else {}
    return " and ".join(f"{count} GPUs{kind and ' of type '}{kind}" for kind, count in have.items()) or "what there is"
