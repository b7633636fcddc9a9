"""The executors of one request, and the work on them."""

from collections.abc import Callable, Mapping, Sequence

from omnibus.executor.sim.device import SimWork
from omnibus.executor.sim.profile import SimComponent
from omnibus.executor.sim.request import ComponentLoad, SimulatedRequest
from omnibus.plan import Path
from omnibus_planner.simulate.cluster import SimulatedCluster, component_work
from omnibus_planner.simulate.executor import ExecutorLane, SimulatedExecutor
from omnibus_planner.simulate.links import NodeNetwork


class RequestExecutors:
    """The executors of one request, and its loop (``RequestLoop``)."""

    __slots__ = (
        "_agenda", "_charges", "_cluster", "_end", "_executors", "_kind", "_model", "_name", "_network", "_next",
        "_open", "_options", "_taken", "kinds", "lanes",
    )  # fmt: skip

    def __init__(
        self,
        cluster: SimulatedCluster,
        network: NodeNetwork,
        model: str,
        kind: str,
        path: Path,
        executors: Mapping[str, Sequence[SimulatedExecutor]],
        loads: Mapping[str, ComponentLoad],
        end: Callable[[SimulatedRequest, float], None],
    ) -> None:
        self._agenda = cluster.agenda
        self._cluster = cluster
        self._network = network
        self._name = model
        self._model = cluster.models[model]
        self._kind = kind
        self._options = path.options
        self._executors = executors
        self._end = end
        self._taken: dict[str, int] = {}
        self._open: dict[SimulatedExecutor, int] = {}
        self.kinds = self._model.devices.kinds
        self.lanes: dict[str, ExecutorLane] = {part: own[0].lanes[part] for part, own in executors.items()}
        #: Executor of the component that follows the encoders.
        self._next = next((executors[part][0] for part in loads if self.kinds[part] != "encode"), None)
        media = sum((load.tokens or 0) * load.items for part, load in loads.items() if self.kinds[part] == "encode")
        self._charges: dict[str, list[tuple[SimulatedExecutor, float]]] = {}
        for part, given in executors.items():
            work = component_work(self.kinds[part], loads[part], media)
            self._charges[part] = [(executor, work) for executor in given]
            if cluster.several_nodes:
                cluster.note_work(cluster.pool_of(model, path.options[part]), work)
            for executor in given:
                self._charge(executor, work)
        cluster.inflight += 1

    def _charge(self, executor: SimulatedExecutor, work: float) -> None:
        opened = self._open.get(executor, 0)
        self._open[executor] = opened + 1
        executor.charge_work(work, first=not opened)

    # Interface for requests in a loop

    @property
    def option(self) -> "RequestExecutors":
        return self

    @property
    def jitter(self) -> float:
        return self._model.devices.times.jitter

    def find_component(self, name: str) -> SimComponent:
        """Return the times of ``name`` on the option that runs it."""
        owner, option = self._cluster.pool_of(self._name, self._options[name])
        lender = self._cluster.models[owner]
        return lender.devices.times.find_option(lender.timed_option(option), owner).find_component(name)

    def queue_work(self, request: SimulatedRequest, component: str, work: SimWork, at: float) -> None:
        """Queue ``work`` once its inputs are on the node of ``component``."""
        taken = self._taken.get(component, 0)
        self._taken[component] = taken + 1
        items = self._executors[component]
        lane = items[taken % len(items)].lanes[component] if len(items) > 1 else self.lanes[component]
        work.continues = work.continues and lane.executor is self._next
        pulls = self._find_pulls(component, lane.executor.node) if not taken else []
        if not pulls:
            lane.queue_work(work, at)
            return
        left = len(pulls)

        def arrive(when: float) -> None:
            nonlocal left
            left -= 1
            if not left:
                lane.queue_work(work, when)

        for source, gb in pulls:
            self._network.send(source, lane.executor.node, gb, at, arrive)

    def _find_pulls(self, component: str, node: str) -> list[tuple[str, float]]:
        """Return the inputs of ``component`` from other nodes, as nodes and GB."""
        if not self._cluster.several_nodes:
            return []
        return [
            (executors[0].node, gb)
            for source, executors in self._executors.items()
            if executors[0].node != node and (gb := self._model.edge_gb(self._kind, source, component)) > 0
        ]

    def finish_component(self, component: str, at: float) -> None:
        """Reduce the work of the executors of ``component``."""
        for executor, work in self._charges[component]:
            left = self._open[executor] = self._open[executor] - 1
            executor.discharge_work(work, last=not left)

    def finish_request(self, request: SimulatedRequest, at: float) -> None:
        """End the request: all its components are complete."""
        self._cluster.inflight -= 1
        self._end(request, at)
