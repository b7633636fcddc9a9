"""Processes known from their events on the bus: ready executors, and the plan of each gateway.

Executors that plans require, as data: kinds, numbers and environments. No I/O.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from omnibus.bus import Bus, Delivery, messages, subjects
from omnibus.bus.census import Census
from omnibus.bus.heartbeats import EXECUTOR_ABSENT_SECONDS
from omnibus.bus.messages import ExecutorStatus, GatewayStatus
from omnibus.cluster.digests import DigestReader, StatusFilter
from omnibus.errors import BusUnavailable, ProtocolError
from omnibus.plan import ModelPlan, Plan

#: Variable with the id of an executor.
ID = "OMNIBUS_EXECUTOR_ID"
#: Variable with the cell of an executor, if its model is in cells.
CELL = "OMNIBUS_EXECUTOR_CELL"
#: Variables with the number of GPUs over which vLLM splits each layer, and of its pipeline stages.
TENSOR_PARALLEL, PIPELINE_PARALLEL = "OMNIBUS_VLLM_TENSOR_PARALLEL", "OMNIBUS_VLLM_PIPELINE_PARALLEL"


class ExecutorKind(NamedTuple):
    """Key of interchangeable executors: each of a kind may replace any other. ``origin`` is ``ModelPlan.origin``."""

    model: str
    option: str
    origin: str

    def __str__(self) -> str:
        return f"{self.model}/{self.option}@{self.origin[:4]}"


class DesiredExecutors(msgspec.Struct, frozen=True):
    """Executors of one kind.

    ``env`` is their environment, except their own ``ID``. ``apps`` are those that brought their model. ``service`` is
    the service that hosts them. Each uses ``gpus`` GPUs of type ``gpu``. ``epoch`` is that of the newest plan that
    requires them. ``nodes`` is the number of replicas by node that the plan chose; empty: any nodes.
    """

    kind: ExecutorKind
    replicas: int
    service: str
    gpus: int
    env: dict[str, str]
    apps: tuple[str, ...]
    gpu: str = ""
    epoch: int = 0
    nodes: dict[str, int] = {}

    @property
    def tensor_parallel(self) -> int:
        """Return the GPUs of one pipeline stage. By default, vLLM splits each layer over them."""
        return self.gpus // int(self.env.get(PIPELINE_PARALLEL, 1))


def desired_executors(*plans: Plan) -> dict[ExecutorKind, DesiredExecutors]:
    """Return the executors that all ``plans`` require together. Of each kind, this is the largest number in any plan.

    Executors of a shared option belong to the model that lends it. Earlier plans must precede later ones.
    """
    executors: dict[ExecutorKind, DesiredExecutors] = {}
    for each in (one for plan in plans for one in _plan_executors(plan)):
        existing = executors.get(each.kind)
        if existing is not None and existing.replicas >= each.replicas:
            each = msgspec.structs.replace(existing, epoch=max(existing.epoch, each.epoch))
        executors[each.kind] = each
    return executors


def replica_counts(models: Mapping[str, ModelPlan]) -> dict[ExecutorKind, int]:
    """Return the number of executors of each kind that ``models`` require."""
    return {
        ExecutorKind(name, option, model.option_origin(option)): deployed.replicas
        for name, model in models.items()
        for option, deployed in model.options.items()
        if deployed.replicas and not deployed.of
    }


def added_replicas(before: Mapping[str, ModelPlan], after: Mapping[str, ModelPlan]) -> dict[ExecutorKind, int]:
    """Return the kinds of which ``after`` requires more executors than ``before``. The values are the numbers in
    ``after``."""
    there = replica_counts(before)
    return {kind: count for kind, count in replica_counts(after).items() if count > there.get(kind, 0)}


def change_groups(before: Mapping[str, ModelPlan], after: Mapping[str, ModelPlan]) -> list[frozenset[str]]:
    """Return the changed models, grouped by those that must change together. Models are tied if one lends an option to
    the other, or if they share a unit task."""
    changed_models = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    return sorted([names & changed_models for names in tied_models(before, after) if names & changed_models], key=min)


def tied_models(before: Mapping[str, ModelPlan], after: Mapping[str, ModelPlan]) -> list[frozenset[str]]:
    """Return all models, grouped by ties. A model in a group cannot change without a check of the others."""
    ties: dict[str, set[str]] = {}
    for models in (before, after):
        for name, model in models.items():
            for tie in _model_ties(name, model):
                ties.setdefault(tie, set()).add(name)
    left, groups = set(before.keys() | after.keys()), list[frozenset[str]]()
    while left:
        together, fresh = set[str](), {min(left)}
        while fresh:
            together |= fresh
            fresh = {name for names in ties.values() if names & fresh for name in names} - together
        groups.append(frozenset(together & left))
        left -= together
    return groups


def _plan_executors(plan: Plan) -> Iterator[DesiredExecutors]:
    for kind, replicas in replica_counts(plan.models).items():
        model = plan.models[kind.model]
        deployment = model.options[kind.option]
        yield DesiredExecutors(
            kind,
            replicas,
            deployment.service,
            deployment.gpus,
            _executor_environment(kind, model),
            model.apps,
            deployment.gpu,
            plan.epoch,
            (plan.placement or {}).get(f"{kind.model}/{kind.option}", {}),
        )


def _executor_environment(kind: ExecutorKind, model: ModelPlan) -> dict[str, str]:
    deployment = model.options[kind.option]
    environment = {
        "MODEL": kind.model,
        "FAMILY": model.family,
        "CHECKPOINT": deployment.checkpoint or model.checkpoint,
        "CONTEXT": str(model.context),
        "OPTION": kind.option,
        "ORIGIN": kind.origin,
        "COMPONENTS": ",".join(deployment.components),
    }
    if all(component in model.tasks for component in deployment.components):
        environment["TASKS"] = ",".join(model.tasks[component] for component in deployment.components)
    if deployment.engine:
        environment["ENGINE"] = deployment.engine
    environment |= {name: str(goal) for name, goal in (("TTFT", model.ttft), ("TBT", model.tbt)) if goal}
    if deployment.cell:
        environment["CELL"] = deployment.cell
    if deployment.batch:
        environment["BATCH"] = str(deployment.batch)
    if deployment.dtype:
        environment["DTYPE"] = deployment.dtype
    if adapters := model.option_adapters(kind.option):
        environment["ADAPTERS"] = msgspec.json.encode(adapters).decode()
    engine = {f"OMNIBUS_VLLM_{name.upper()}": str(value) for name, value in (deployment.vllm or {}).items()}
    return {f"OMNIBUS_EXECUTOR_{name}": value for name, value in environment.items()} | engine


def _model_ties(name: str, model: ModelPlan) -> Iterable[str]:
    yield f"model {name}"
    for option in model.options.values():
        if option.of:
            yield f"model {option.of.rpartition('/')[0]}"
    for task in model.tasks.values():
        yield f"task {task}"


Entry = TypeVar("Entry")

_DECODERS: dict[str, Callable[[bytes], Any]] = {
    subjects.EXECUTOR: messages.decode_status,
    subjects.GATEWAY: messages.decode_gateway,
    subjects.LOAD: messages.decode_load,
    subjects.PLAN: messages.decode_plan_event,
    subjects.NODE: messages.decode_node,
    subjects.NODE_BEAT: messages.decode_node,
    subjects.GONE: lambda data: data.decode(errors="replace"),
}


async def follow_events(
    bus: Bus,
    handlers: Mapping[str, Callable[[Any], None]],
    on_unreadable: Callable[[ProtocolError], None] = lambda error: None,
    census: Census | None = None,
    fresh: StatusFilter | None = None,
) -> list[Callable[[], Awaitable[None]]]:
    """Call each handler with the events of its kind. Events are those of ``bus.messages``; for ``GONE``, the executor's
    id.

    ``on_unreadable`` gets the errors of events of another build. Handlers also get the answers to ``census``, and that
    of executors the statuses in digests that are not older than others by ``fresh``. Returns functions that end the
    subscriptions.
    """
    fresh = fresh or StatusFilter()
    notes: dict[str, Callable[[Any], None]] = {subjects.EXECUTOR: fresh.note_direct, subjects.GONE: fresh.note_gone}

    def subscriber(kind: str, handler: Callable[[Any], None]) -> Callable[[Delivery], None]:
        def on_delivery(delivery: Delivery) -> None:
            try:
                event = _DECODERS[kind](delivery.data)
            except ProtocolError as error:
                on_unreadable(error)
            else:
                if note is not None:
                    note(event)
                handler(event)

        note = notes.get(kind)
        return on_delivery

    sources = {subjects.event_subject(kind): kind for kind in handlers}
    if census is not None:
        sources |= {census.answer_subject(kind): kind for kind in handlers if kind in census.kinds}
    ends = [await bus.subscribe(subject, subscriber(kind, handlers[kind])) for subject, kind in sources.items()]
    if subjects.EXECUTOR in handlers:
        ends.append(await DigestReader(bus, handlers[subjects.EXECUTOR], fresh).listen())
    return ends


class PresenceTracker(Generic[Entry]):
    """Processes by id, each with an entry. One that is silent for ``lost_after`` seconds is forgotten.

    ``on_forgotten`` gets the entry of each one that is forgotten for its silence.
    """

    def __init__(
        self,
        lost_after: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        on_forgotten: Callable[[Entry], None] = lambda entry: None,
    ) -> None:
        self._lost_after = lost_after
        self._clock = clock
        self._on_forgotten = on_forgotten
        self._known: dict[str, Entry] = {}
        self._seen: OrderedDict[str, float] = OrderedDict()  # times, the oldest first
        self._changed = asyncio.Event()

    def record(self, id: str, entry: Entry) -> None:
        """Record that process ``id`` has just reported."""
        self._known[id] = entry
        self._seen[id] = self._clock()
        self._seen.move_to_end(id)

    def remove(self, id: str) -> Entry | None:
        """Forget ``id``, which has ended. Returns its entry."""
        self._seen.pop(id, None)
        return self._known.pop(id, None)

    def get(self, id: str) -> Entry | None:
        """Return the entry of ``id``, or None if it is not present."""
        entry = self._known.get(id)
        return entry if entry is not None and self._seen[id] >= self._clock() - self._lost_after else None

    def last_seen(self, id: str) -> float:
        """Return the time of the last report of ``id``. It is by the clock, and minus infinity if unknown."""
        return self._seen.get(id, -math.inf)

    def entries(self) -> dict[str, Entry]:
        """Return the entries of all present processes."""
        self.forget_silent()
        return dict(self._known)

    def forget_silent(self) -> None:
        """Forget the processes that are silent for too long. Takes a time in proportion to their number."""
        self.forget_before(self._clock() - self._lost_after)

    def forget_before(self, time: float) -> None:
        """Forget all processes that have been silent since ``time``."""
        while self._seen and next(iter(self._seen.values())) < time:
            id, _ = self._seen.popitem(last=False)
            self._on_forgotten(self._known.pop(id))

    def notify_change(self) -> None:
        """Make ``wait_until`` evaluate its condition again."""
        self._changed.set()

    async def wait_until(self, true: Callable[[], bool], seconds: float | None = None) -> bool:
        """Return whether ``true`` becomes true within ``seconds``. It is evaluated at each ``notify_change``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not true():
                    self._changed.clear()
                    await self._changed.wait()
        return true()


class ReadyExecutors:
    """Follows the status of executors, after ``listen``. An executor without an origin counts for any.

    Counts are updated with each change, so that they cost the same for any number of executors.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._statuses = PresenceTracker[ExecutorStatus](EXECUTOR_ABSENT_SECONDS, clock, self._discount)
        self._present: dict[ExecutorKind, int] = {}
        self._ready: dict[ExecutorKind, int] = {}
        self._tell: Callable[[], None] = lambda: None

    async def listen(self, bus: Bus, tell: Callable[[], None] | None = None) -> None:
        """Start to follow the executors. ``tell`` is called when one appears, begins to drain, or ends."""
        self._tell = tell or self._tell
        census = Census(bus, subjects.EXECUTOR)
        handlers: dict[str, Callable[[Any], None]] = {
            subjects.EXECUTOR: self.handle_status,
            subjects.GONE: self._on_gone,
        }
        await follow_events(bus, handlers, census=census)
        census.ask()

    def ready_ids(self) -> set[str]:
        """Return the ids of the executors that are ready now."""
        return {status.id for status in self.ready_statuses()}

    def reports(self) -> dict[str, tuple[ExecutorStatus, float]]:
        """Return the last report of each present executor, by id. The second value is its time by the clock."""
        return {id: (status, self._statuses.last_seen(id)) for id, status in self._statuses.entries().items()}

    def count_ready(self, kind: ExecutorKind) -> int:
        """Return the number of executors of ``kind`` that are ready now."""
        self._statuses.forget_silent()
        count = self._ready.get(kind, 0)
        return count + self._ready.get(kind._replace(origin=""), 0) if kind.origin else count

    def count_present(self) -> dict[ExecutorKind, int]:
        """Return the number of present executors of each kind. This includes ready and draining ones."""
        self._statuses.forget_silent()
        return dict(self._present)

    def count_missing(self, planned_counts: Mapping[ExecutorKind, int]) -> dict[ExecutorKind, int]:
        """Return the number of ready executors of each incomplete kind. A kind is incomplete if it has fewer than in
        ``planned_counts``."""
        ready_counts = {kind: self.count_ready(kind) for kind in planned_counts}
        return {kind: count for kind, count in ready_counts.items() if count < planned_counts[kind]}

    async def wait_for_kinds(self, planned_counts: Mapping[ExecutorKind, int], seconds: float) -> bool:
        """Return whether all ``planned_counts`` executors are ready within ``seconds``."""
        return await self._statuses.wait_until(lambda: not self.count_missing(planned_counts), seconds)

    async def wait_for(self, executors: Collection[str], seconds: float) -> bool:
        """Return whether all ``executors`` are ready within ``seconds``."""
        return await self._statuses.wait_until(lambda: self.ready_ids().issuperset(executors), seconds)

    def ready_statuses(self) -> list[ExecutorStatus]:
        """Return the last status of each executor that is ready now."""
        return [status for status in self._statuses.entries().values() if status.state == "ready"]

    def handle_status(self, status: ExecutorStatus) -> None:
        """Handle a status event."""
        if status.state not in ("ready", "draining"):
            self._on_gone(status.id)
            return
        self._statuses.forget_silent()
        previous = self._statuses.get(status.id)
        self._statuses.record(status.id, status)
        if previous is not None and _counts_alike(previous, status):
            return
        if previous is not None:
            self._discount(previous)
        self._add_count(status, 1)
        self._notify_change()

    def _on_gone(self, executor: str) -> None:
        status = self._statuses.remove(executor)
        if status is not None:
            self._discount(status)
            self._notify_change()

    def _discount(self, status: ExecutorStatus) -> None:
        self._add_count(status, -1)

    def _add_count(self, status: ExecutorStatus, change: int) -> None:
        kind = ExecutorKind(status.model, status.option, status.origin)
        for counts in (self._present, self._ready) if status.state == "ready" else (self._present,):
            counts[kind] = counts.get(kind, 0) + change
            if not counts[kind]:
                del counts[kind]

    def _notify_change(self) -> None:
        self._statuses.notify_change()
        self._tell()


def _counts_alike(status: ExecutorStatus, other: ExecutorStatus) -> bool:
    return (status.state, status.model, status.option, status.origin) == (
        other.state, other.model, other.option, other.origin,
    )  # fmt: skip


class GatewayPlans:
    """Follows the plan of each gateway, after ``listen``."""

    def __init__(self) -> None:
        self._plans = PresenceTracker[float]()
        self._census: Census | None = None

    async def listen(self, bus: Bus) -> None:
        self._census = Census(bus, subjects.GATEWAY)
        await follow_events(bus, {subjects.GATEWAY: self._on_status}, census=self._census)
        self._publish_census()

    async def wait_for_plan(self, plan_time: float, seconds: float) -> bool:
        """Return whether all gateways switch to this plan within ``seconds``.

        The plan was made at ``plan_time``; a newer one counts too.

        A gateway that has sent nothing by then is forgotten, so that its end costs this time once.
        """
        begin = time.monotonic()
        self._publish_census()
        plans = self._plans
        if await plans.wait_until(lambda: all(plan >= plan_time for plan in plans.entries().values()), seconds):
            return True
        plans.forget_before(begin)
        return False

    def _publish_census(self) -> None:
        if self._census is None:
            return
        with suppress(BusUnavailable):  # without a bus, no response could arrive either
            self._census.ask()

    def _on_status(self, status: GatewayStatus) -> None:
        if status.state == "ready":
            self._plans.record(status.id, status.created)
        else:
            self._plans.remove(status.id)
        self._plans.notify_change()
