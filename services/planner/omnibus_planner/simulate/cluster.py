"""Executors of a plan on nodes, and the executors for a request.

The rules are those of gateways (``omnibus_gateway.routing``). The path follows from the request's number and the
paths' shares. The replica is the one with the least outstanding work; with several nodes it is one near the inputs if
that has little more. Replicas share the items of encoders. A request is rejected if each of its paths has a full
executor. Among cells with the same options, a request gets the one with the least work for its share.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from omnibus.cells import base_option, has_cells
from omnibus.errors import BadRequest
from omnibus.executor.sim.request import ComponentLoad
from omnibus.plan import ModelPlan, Path, choose_path, request_point
from omnibus_planner.simulate.agenda import Agenda
from omnibus_planner.simulate.devices import ModelDevices
from omnibus_planner.simulate.executor import SimulatedExecutor
from omnibus_planner.simulate.saturate import BATCH_ROWS

#: Work in tokens that gateways assume for a text of unknown length, for an answer, and for speech.
_TEXT_WORK, _ANSWER_WORK, _SPEECH_WORK = 32, 256, 1024
#: Excess over the least work, in mean requests, that an executor near the inputs may have (``OMNIBUS_GATEWAY_NEAR``).
_NEAR = 0.5
#: Name that seeds the choices of paths.
_GATEWAY = "simulated"


class AdmissionLimits(NamedTuple):
    """Limits of a deployment.

    ``credits`` is the number of requests of one executor (``OMNIBUS_EXECUTOR_CREDITS``); the plan's applies if it is
    lower. ``inflight`` is that of all requests in flight (``OMNIBUS_GATEWAY_MAX_INFLIGHT``). ``deadline`` is the time
    limit of a request in seconds (``OMNIBUS_GATEWAY_DEADLINE``).
    """

    credits: int = 64
    inflight: int = 512
    deadline: float = 120.0


class RoutingRules(NamedTuple):
    """Rules for the choice of executors. The defaults are those of gateways, others those of systems to compare with.

    ``spread_items``: the items of a request go to several encoders. ``least_work``: the replica with the least work
    gets a request, else the replicas take turns. ``shortest_queue``: the path whose executors have the fewest requests,
    instead of the planned shares.
    """

    spread_items: bool = True
    least_work: bool = True
    shortest_queue: bool = False


class SimulatedModel(NamedTuple):
    """A deployed model. ``places`` are replicas by option and node; an option without them is on one node.

    ``edge_gb`` returns the GB of a request type from one component to another.
    """

    plan: ModelPlan
    devices: ModelDevices
    places: Mapping[str, Mapping[str, int]] = {}
    edge_gb: Callable[[str, str, str], float] = lambda kind, source, target: 0.0

    def timed_option(self, name: str) -> str:
        """Return the option with the times of ``name``: for a cell, the option without its cell."""
        return base_option(self.plan, name)


class Choice(NamedTuple):
    """The paths and executors of a request.

    ``planned`` is the planned path, and ``path`` the chosen one. ``executors`` are one for each component on it, and
    for encoders one for each item. They are None if every path has a full executor.
    """

    planned: Path
    path: Path
    executors: dict[str, list[SimulatedExecutor]] | None


class SimulatedCluster:
    """All executors of ``models``. Raises ``BadRequest`` for a path through an option without executors."""

    def __init__(
        self,
        agenda: Agenda,
        models: Mapping[str, SimulatedModel],
        limits: AdmissionLimits,
        seed: int,
        rules: RoutingRules = RoutingRules(),  # noqa: B008 a constant
    ) -> None:
        self.agenda = agenda
        self.models = models
        self.limits = limits
        self.rules = rules
        self.pools: dict[tuple[str, str], list[SimulatedExecutor]] = {}
        self.inflight = 0
        self._seed = seed
        self._numbers: dict[tuple[str, str], Iterator[int]] = {}
        self._paths: dict[tuple[str, str], tuple[Path, ...]] = {}
        self._same_cells: dict[tuple[str, str], tuple[Path, ...]] = {}
        self._celled = {name for name, model in models.items() if has_cells(model.plan)}
        self._turns = count()
        self._mean_work: dict[tuple[str, str], tuple[float, int]] = {}
        for name, model in models.items():
            for option, deployed in model.plan.options.items():
                if not deployed.of:
                    self.pools[name, option] = list(_start_executors(agenda, name, option, model))
        self.several_nodes = len({each.node for pool in self.pools.values() for each in pool}) > 1

    def pool_of(self, model: str, option: str) -> tuple[str, str]:
        """Return the model and option whose executors run ``option`` of ``model``."""
        of = self.models[model].plan.options[option].of
        owner, _, own = of.rpartition("/")
        return (owner, own) if of else (model, option)

    def choose_executors(self, model: str, kind: str, loads: Mapping[str, ComponentLoad]) -> Choice:
        """Choose executors for the next request of ``kind``. Raises ``BadRequest`` if the plan has no path for it."""
        paths = self._paths.get((model, kind))
        if paths is None:
            paths = self._paths[model, kind] = self.models[model].plan.paths_for(frozenset(kind.split("+")))
        if not paths:
            raise BadRequest(f"the plan of {model} has no path for requests of {kind}")
        number = next(self._numbers.setdefault((model, kind), count()))
        if self.rules.shortest_queue:
            planned = min(paths, key=lambda path: self._longest_queue(model, path))
        else:
            planned = choose_path(paths, request_point(_GATEWAY, f"{model}/{kind}", number, self._seed))
            if model in self._celled:
                planned = self._choose_cell(model, kind, planned, paths)
        if self.inflight < self.limits.inflight:
            for path in (planned, *(each for each in paths if each is not planned and each.rate > 0)):
                most = self.limits.credits if path is planned else min(self.limits.credits, BATCH_ROWS)
                chosen = self._choose_along(model, path, loads, most)
                if chosen is not None:
                    return Choice(planned, path, chosen)
        return Choice(planned, planned, None)

    def _choose_cell(self, model: str, kind: str, planned: Path, paths: Sequence[Path]) -> Path:
        """Return the least loaded of equal paths in cells.

        The load is the work relative to the path's rate. ``paths`` through the options of ``planned`` are equal, one in
        each cell.
        """
        key = model, f"{kind} {planned.name}"
        same = self._same_cells.get(key)
        if same is None:
            wanted = self._path_options(model, planned)
            same = tuple(each for each in paths if each.rate > 0 and self._path_options(model, each) == wanted)
            self._same_cells[key] = same
        return min((planned, *same), key=lambda path: self._path_work(model, path) / path.rate)

    def _path_options(self, model: str, path: Path) -> dict[str, str]:
        return {part: self.models[model].timed_option(name) for part, name in path.options.items()}

    def _path_work(self, model: str, path: Path) -> float:
        """Return the outstanding work of the busiest option on ``path``."""
        pools = (self.pools.get(self.pool_of(model, option), []) for option in dict.fromkeys(path.options.values()))
        return max((sum(each.outstanding for each in pool) for pool in pools), default=0.0)

    def _longest_queue(self, model: str, path: Path) -> int:
        """Return the longest queue along ``path``, at each option's emptiest executor."""
        pools = (self.pools.get(self.pool_of(model, option), []) for option in set(path.options.values()))
        return max((min((each.inflight for each in pool), default=0) for pool in pools), default=0)

    def _choose_along(
        self, model: str, path: Path, loads: Mapping[str, ComponentLoad], most: int
    ) -> dict[str, list[SimulatedExecutor]] | None:
        """Choose executors with fewer requests than ``most`` and their plan's credits; None if an option has none."""
        encoders = set(self.models[model].plan.encoders.values())
        chosen: dict[str, list[SimulatedExecutor]] = {}
        for option in dict.fromkeys(path.options.values()):
            owner, own = self.pool_of(model, option)
            pool = self.pools.get((owner, own), [])
            if not pool:
                raise BadRequest(f"the plan of {model} goes through {option}, of which it has no executor")
            credits = self.models[owner].plan.options[own].bound_credits(most)
            free = [each for each in pool if each.inflight < credits]
            if not free:
                return None
            parts = [part for part, runs in path.options.items() if runs == option and part in loads]
            if {*parts} <= encoders:
                for part in parts:
                    chosen[part] = self._spread_items(free, loads[part].items)
            else:
                near = {each.node for others in chosen.values() for each in others} if self.several_nodes else set()
                executor = self._least_loaded(free, near, (owner, own))
                chosen |= {part: [executor] * loads[part].items for part in parts}
        return chosen

    def _spread_items(self, pool: Sequence[SimulatedExecutor], items: int) -> list[SimulatedExecutor]:
        turn = next(self._turns)
        if not self.rules.least_work:
            order = [(turn + at) % len(pool) for at in range(len(pool))]
        else:
            order = sorted(range(len(pool)), key=lambda at: (pool[at].outstanding, (at - turn) % len(pool)))
        if not self.rules.spread_items:
            return [pool[order[0]]] * items
        return [pool[order[item % len(order)]] for item in range(items)]

    def _least_loaded(
        self, pool: Sequence[SimulatedExecutor], near: set[str], key: tuple[str, str]
    ) -> SimulatedExecutor:
        turn = next(self._turns)
        first = turn % len(pool)
        if not self.rules.least_work:
            return pool[first]
        ordered = (*pool[first:], *pool[:first]) if len(pool) > 1 else pool
        least = min(ordered, key=_outstanding)
        if not near:
            return least
        total, sent = self._mean_work.get(key, (0.0, 0))
        limit = least.outstanding + _NEAR * (total / sent if sent else 1.0)
        close = [each for each in ordered if each.node in near and each.outstanding <= limit]
        return min(close, key=_outstanding) if close else least

    def note_work(self, key: tuple[str, str], work: float) -> None:
        """Note that a request brings ``work`` to the executors of ``key``."""
        total, sent = self._mean_work.get(key, (0.0, 0))
        self._mean_work[key] = total + work, sent + 1


def component_work(kind: str, load: ComponentLoad, media_tokens: int) -> float:
    """Return the work of a component or item, in gateways' tokens.

    An item is one of an encoder.
    """
    if kind == "encode":
        return float(load.tokens or 1)
    if kind in ("talk", "vocode"):
        return float(_SPEECH_WORK)
    prompt = load.tokens or media_tokens + _TEXT_WORK
    return float({"prefill": prompt, "decode": _ANSWER_WORK}.get(kind, prompt + _ANSWER_WORK))


def _outstanding(executor: SimulatedExecutor) -> float:
    return executor.outstanding


def _start_executors(agenda: Agenda, name: str, option: str, model: SimulatedModel) -> Iterator[SimulatedExecutor]:
    deployed, devices = model.plan.options[option], model.devices
    times = devices.times.find_option(model.timed_option(option), name)
    kinds = {part: devices.kinds[part] for part in devices.components if part in deployed.components}
    there = model.places.get(option, {})
    nodes = [node for node, count in there.items() for _ in range(count)]
    for number in range(deployed.replicas):
        node = nodes[number] if number < len(nodes) else ""
        yield SimulatedExecutor(
            agenda, f"{name}/{option}-{number}", times, kinds, devices.times.time_scale, BATCH_ROWS, node
        )
