"""Admission: a request waits here, not in an executor, for its tenant's turn and for room.

Executors receive as many requests as they batch (``omnibus_gateway.tenancy.admission``). The others wait in one short
queue per tenant, in the order of ``omnibus_gateway.tenancy.fair_queue``. A request waits once: later segments of its
graph are sent and counted at once. Its cost is the one that executors report, even if it failed or was cancelled.

Places at executors: their number, their tenants, and the path of the next request.

Each executor receives as many requests as it batches, counted by the option that it runs: paths that share an option
share its places. A few spare places (``omnibus.spare_places``) are reserved for tenants with nothing in service there.
So a tenant that holds all other places for long does not block the others. A single tenant may use all but these.

Among the paths with room, the next one by the planned rates is taken: start-time fair queueing of paths. A full path
does not catch up on missed turns: its turn counts from when it has room again.

Slot of one request: its turn from begin to end, and the cost of its segments.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from omnibus.errors import Overloaded
from omnibus.plan import Path
from omnibus.settings import GatewaySettings
from omnibus.spare_places import count_spare_places
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.routing.assignment import Assignment
from omnibus_gateway.routing.router import NO_PATHS, Router
from omnibus_gateway.tenancy.cost_model import RequestCost, RequestCostModel
from omnibus_gateway.tenancy.fair_queue import (
    WAITING,
    FairQueue,
    ModelQueue,
    QueueEntry,
    count_gpu_seconds,
    count_refused,
    observe_wait,
)
from omnibus_gateway.tenancy.rate_limits import RateLimits
from omnibus_gateway.tenancy.tenant import Tenant

#: Executors of one option: its model and name.
Pool = tuple[str, str]

#: Seconds for which a count of places is valid.
CAPACITY_TTL_SECONDS = 0.25
#: Kinds of requests, and pools, that are cached.
_MAX_REMEMBERED = 4096


class PathChoice(NamedTuple):
    """A path of ``model``, and its executors."""

    model: str
    kind: str
    path: Path
    pools: tuple[Pool, ...]
    first: bool = False  # preferred if it has room


class PathTurns:
    """Order of the paths of one kind of request."""

    def __init__(self) -> None:
        self._tags: dict[str, float] = {}  # requests for each unit of a path's rate
        self._full: set[str] = set()
        self._now = 0.0  # tag of the last path

    def choose(self, choices: Sequence[PathChoice], free: Sequence[PathChoice]) -> PathChoice:
        """Take the preferred or the next one of the ``free`` ``choices``."""
        for choice in free:
            name = choice.path.name
            least = self._now if name in self._full else 0.0
            self._tags[name] = max(least, self._tags.get(name, self._now))
        path_choice = next((choice for choice in free if choice.first), None) or min(free, key=self._next_tag)
        self._full = {choice.path.name for choice in choices if choice not in free}
        self._now, self._tags[path_choice.path.name] = self._tags[path_choice.path.name], self._next_tag(path_choice)
        return path_choice

    def _next_tag(self, choice: PathChoice) -> float:
        return self._tags[choice.path.name] + 1.0 / max(choice.path.rate, 1e-9)


class ExecutorPlaces:
    """The places of one gateway, which is one of ``gateways``."""

    def __init__(
        self,
        settings: GatewaySettings,
        router: Router,
        gateways: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.router = router
        self._settings = settings
        self._gateways = gateways
        self._clock = clock
        self._used: Counter[Pool] = Counter()
        self._used_by: Counter[tuple[Pool, str]] = Counter()
        self._known: dict[Pool, tuple[float, int, int]] = {}
        self._turns: dict[tuple[str, str], PathTurns] = {}

    def path_turns(self, choice: PathChoice) -> PathTurns:
        """Return the turns of the paths for requests like that of ``choice``."""
        if len(self._turns) > _MAX_REMEMBERED:
            self._turns.clear()
        return self._turns.setdefault((choice.model, choice.kind), PathTurns())

    def is_served(self, pool: Pool) -> bool:
        """Return True if ``pool`` has an executor."""
        return self._capacity(pool)[0] > 0

    def has_room(self, pool: Pool, tenant: str, claimed_pools: Collection[Hashable]) -> bool:
        """Return True if ``pool`` may receive a request of ``tenant`` now.

        Earlier requests wait for ``claimed_pools``. A pool without executors is full once it has one request, which
        fails for that reason.
        """
        places, spare = self._capacity(pool)
        used_places = self._used[pool]
        if pool not in claimed_pools and used_places < max(1, places):
            return True
        return not self._used_by[pool, tenant] and used_places < places + spare

    def occupy(self, pools: Collection[Pool], tenant: str) -> None:
        for pool in pools:
            self._used[pool] += 1
            self._used_by[pool, tenant] += 1

    def vacate(self, pools: Collection[Pool], tenant: str) -> None:
        for pool in pools:
            self._used[pool] -= 1
            self._used_by[pool, tenant] -= 1
            if not self._used_by[pool, tenant]:
                del self._used_by[pool, tenant]

    def _capacity(self, pool: Pool) -> tuple[int, int]:
        """Return the places of ``pool`` for this gateway, and its spare places."""
        now = self._clock()
        cached_capacity = self._known.get(pool)
        if cached_capacity is None or now >= cached_capacity[0]:
            if len(self._known) > _MAX_REMEMBERED:
                self._known.clear()
            cached_capacity = self._known[pool] = (now + CAPACITY_TTL_SECONDS, *self._count_places(pool))
        return cached_capacity[1], cached_capacity[2]

    def _count_places(self, pool: Pool) -> tuple[int, int]:
        places = spare = 0
        for member in self.router.members.fit_executors(*pool):
            status = member.status
            own = self._settings.admit or status.slots or status.credits
            extra = max(0, min(count_spare_places(own), status.credits - own))
            if member.pool.credits:
                own = max(1, min(own, member.credits - extra))
            places += own
            spare += extra
        gateways = self._gateways()
        return -(-places // gateways), -(-spare // gateways)


class RequestClaim:
    """The places of a request of ``tenant``: one path for each of its models."""

    def __init__(self, places: ExecutorPlaces, tenant: str, choices: Sequence[Sequence[PathChoice]]) -> None:
        self._places = places
        self._tenant = tenant
        self._choices = choices
        self._taken: tuple[PathChoice, ...] = ()
        self.pools = frozenset(pool for paths in choices for choice in paths for pool in choice.pools)

    @property
    def paths(self) -> dict[str, str]:
        """The chosen path, by model."""
        return {choice.model: choice.path.name for choice in self._taken}

    def take(self, claimed_pools: Collection[Hashable]) -> bool:
        """Take a place at each executor of the next free path; see ``PlaceClaim``."""
        free = [[choice for choice in paths if self._has_room(choice, claimed_pools)] for paths in self._choices]
        if not all(free):
            return False
        parts = zip(self._choices, free, strict=True)
        self._taken = tuple(
            [self._places.path_turns(free_choices[0]).choose(paths, free_choices) for paths, free_choices in parts]
        )
        for choice in self._taken:
            self._places.occupy(choice.pools, self._tenant)
        return True

    def _has_room(self, choice: PathChoice, claimed_pools: Collection[Hashable]) -> bool:
        return all(self._places.has_room(pool, self._tenant, claimed_pools) for pool in choice.pools)

    def release(self) -> None:
        for choice in self._taken:
            self._places.vacate(choice.pools, self._tenant)


def find_choices(
    places: ExecutorPlaces,
    assignment: Assignment,
    pinned_path: str = "",
    pins: Sequence[str] = (),
    conversation: str = "",
) -> list[list[PathChoice]]:
    """Return the allowed paths per model of ``assignment``, live ones if possible.

    Raises as ``Router.admissible_paths``. A ``conversation`` prefers its last path if there is room.
    """
    part_choices = []
    for part in assignment.parts:
        paths = places.router.admissible_paths(part, pinned_path, pins, len(assignment.parts) > 1)
        choices = [PathChoice(part.model, part.kind, path, places.router.path_pools(part, path)) for path in paths]
        choices = [choice for choice in choices if all(map(places.is_served, choice.pools))] or choices[:1]
        choices = [choice for choice in choices if choice.path.rate > 0] or choices
        if conversation and len(choices) > 1 and choices[0].path.rate > 0:
            kept_path = places.router.conversation_path(part, conversation, [choice.path for choice in choices])
            choices = [choice._replace(first=choice.path is kept_path) for choice in choices]
        part_choices.append(choices)
    return part_choices


#: Reasons of rejections that more executors would avoid; others are limits of a key.
CAPACITY_REASONS = frozenset({"queue", "turn"})
#: Queues that are kept before empty ones are evicted: apps, and sets of models with them, change over time.
_MAX_QUEUES = 1024


class PlaceRequest(NamedTuple):
    """Request for places.

    ``left`` are the seconds until its deadline. A ``patient`` request waits that long, others for ``admit_wait`` at
    most, and not longer than the goals of their type. ``pinned`` and ``pins`` are as for ``Router.route``."""

    assignment: Assignment
    cost: RequestCost
    left: float
    patient: bool = False
    pinned: str = ""
    pins: Sequence[str] = ()
    conversation: str = ""


class AdmissionGrant:
    """Turn of a request: ``close`` releases its places, and ``settle`` records its usage."""

    def __init__(
        self, admission: "Admission", fair: FairQueue, turn: QueueEntry, tenant: Tenant, paths: Mapping[str, str]
    ) -> None:
        self.paths = paths  # by model
        self._admission = admission
        self._fair = fair
        self._turn = turn
        self._tenant = tenant
        self._expected = turn.cost
        self._settled = False

    def add_cost(self, seconds: float) -> None:
        """Add the expected cost of another segment, which does not wait."""
        self._expected += seconds
        self._admission.charge(self._tenant, seconds)

    def close(self) -> None:
        """Release the places of the request, which runs no more; idempotent."""
        self._admission.end_request(self._fair, self._turn)

    def settle(self, gpu_seconds: float) -> None:
        """Record that the request ``gpu_seconds`` so many GPU-seconds; idempotent."""
        if not self._settled:
            self._settled = True
            self._admission.charge(self._tenant, gpu_seconds - self._expected)
            self._fair.settle_entry(self._turn, gpu_seconds)
            count_gpu_seconds(self._tenant.name, gpu_seconds)


class Admission:
    """Queues of one gateway, one for each combination of models."""

    def __init__(
        self,
        settings: GatewaySettings,
        router: Router,
        costs: RequestCostModel,
        limits: RateLimits,
        gateways: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.costs = costs
        self._settings = settings
        self._limits = limits
        self._clock = clock
        self._router = router
        self._queues: dict[str, ModelQueue] = {}
        self._places = ExecutorPlaces(settings, router, gateways, clock)

    def queues(self) -> Iterable[ModelQueue]:
        """Return the queues that requests have used."""
        return self._queues.values()

    async def acquire_grant(self, tenant: Tenant, request: PlaceRequest) -> AdmissionGrant:
        """Wait for the turn of a request of ``tenant``.

        Raises ``Overloaded`` if its tenant's queue is full, its key has no GPU-seconds left, or its turn does not come
        in time. Also raises as ``Router.admissible_paths``.
        """
        queue = self._model_queue(request.assignment)
        line = tenant.queue or tenant.name
        choices = find_choices(self._places, request.assignment, request.pinned, request.pins, request.conversation)
        claim = RequestClaim(self._places, line, choices)
        try:
            if tenant.key is not None:
                self._limits.key_allowance(tenant.key).check_gpu_seconds(self._clock())
            turn = await self._enqueue_and_wait(queue, tenant, claim, request)
        except Overloaded as error:
            count_refused(tenant.name, error.reason, *queue.models)
            raise
        self.charge(tenant, request.cost.seconds)
        return AdmissionGrant(self, queue.fair, turn, tenant, claim.paths)

    def _model_queue(self, assignment: Assignment) -> ModelQueue:
        model_queue = self._queues.get(assignment.model)
        if model_queue is None:
            if len(self._queues) >= _MAX_QUEUES:
                self._queues = {
                    name: each for name, each in self._queues.items() if each.fair.working or each.fair.waiting
                }
            models = tuple(part.model for part in assignment.parts)
            model_queue = self._queues[assignment.model] = ModelQueue(models, FairQueue(self._settings.admit_queue))
        return model_queue

    async def _enqueue_and_wait(
        self, queue: ModelQueue, tenant: Tenant, claim: RequestClaim, request: PlaceRequest
    ) -> QueueEntry:
        came, fair = self._clock(), queue.fair
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn = fair.enqueue(
            tenant.queue or tenant.name,
            tenant.weight,
            request.cost.seconds,
            claim,
            lambda: _wake_waiter(woken),
            request.patient,
        )
        self._start_ready()
        try:
            if turn.state == WAITING:
                most = request.left
                if not request.patient:
                    most = min(most, self._settings.admit_wait, self._router.longest_wait(request.assignment))
                await self._wait_in_queue(fair, turn, woken, most)
        finally:
            if not request.patient:
                observe_wait(self._clock() - came, queue.models)
        return turn

    async def _wait_in_queue(
        self, fair: FairQueue, turn: QueueEntry, woken: "asyncio.Future[None]", seconds: float
    ) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await woken
        except TimeoutError:
            if turn.state != WAITING:  # its turn came at the same moment
                return
            fair.remove_waiting(turn)
            self._start_ready()  # it may have blocked others
            raise Overloaded(
                f"the request did not get its turn within {seconds:g} s: its tenant has sent more than its share",
                retry_after=turn.line.retry_after,
                reason="turn",
            ) from None
        except BaseException:
            fair.remove_waiting(turn)
            fair.settle_entry(turn, 0.0)
            self.end_request(fair, turn)
            raise

    def charge(self, tenant: Tenant, seconds: float) -> None:
        """Charge ``seconds`` that are expected or used; negative ones are refunded."""
        if tenant.key is not None:
            self._limits.key_allowance(tenant.key).use_gpu_seconds(seconds, self._clock())

    def end_request(self, fair: FairQueue, turn: QueueEntry) -> None:
        """Release the places of ``turn`` and start waiting requests, for any model."""
        fair.finish_entry(turn)
        self._start_ready()

    def _start_ready(self) -> None:
        for queue in list(self._queues.values()):
            while queue.fair.waiting and (turn := queue.fair.start_next(self._clock())) is not None:
                if turn.begin is not None:
                    turn.begin()


def _wake_waiter(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)


class AdmissionSlot:
    """Slot of a request of ``tenant``. A ``patient`` one waits until its deadline, without a queue limit."""

    def __init__(self, admission: Admission, tenant: Tenant) -> None:
        self.patient = False
        self.pinned = ""
        self.conversation = ""
        self._admission = admission
        self._tenant = tenant
        self._one_by_one = asyncio.Lock()
        self._grant: AdmissionGrant | None = None
        self._costs: dict[int, RequestCost] = {}  # by the step of each segment
        self._used: dict[int, float] = {}  # GPU-seconds of the segments that are settled
        self._steps: frozenset[int] | None = None  # those sent, once nothing runs any more

    @property
    def paths(self) -> Mapping[str, str]:
        """The paths on which it has places, by model."""
        return self._grant.paths if self._grant is not None else NO_PATHS

    async def acquire(
        self, assignment: Assignment, work: Sequence[float], step: int, left: float, pins: Sequence[str] = ()
    ) -> None:
        """Wait for the turn, at the first segment; count its expected cost. Raises ``Overloaded``."""
        cost = self._admission.costs.expected_cost(assignment, work, self._tenant.name)
        async with self._one_by_one:  # an app may send several at once, and has one turn for all of them
            if self._grant is None:
                request = PlaceRequest(assignment, cost, left, self.patient, self.pinned, pins, self.conversation)
                self._grant = await self._admission.acquire_grant(self._tenant, request)
            else:
                self._grant.add_cost(cost.seconds)
        self._costs[step] = cost

    def release(self, segments: Sequence[InflightInvocation]) -> None:
        """Release the turn, because none of ``segments`` runs any more; idempotent."""
        if self._grant is not None and self._steps is None:
            self._steps = frozenset(running.invocation.step for running in segments)
            self._grant.close()
            self._settle_request(self._grant)

    def settle_segment(self, running: InflightInvocation, seconds: float) -> None:
        """Settle a segment at ``seconds`` of GPUs, after its last reports."""
        step = running.invocation.step
        cost = self._costs.get(step)
        if self._grant is not None and cost is not None and step not in self._used:
            self._used[step] = self._admission.costs.learn(cost, running, seconds, self._tenant.name)
            self._settle_request(self._grant)

    def _settle_request(self, grant: AdmissionGrant) -> None:
        if self._steps is not None and self._steps & self._costs.keys() <= self._used.keys():
            grant.settle(sum(self._used.values()))
