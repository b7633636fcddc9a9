"""Table of the executors that can serve, from their status events alone."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

from omnibus.bus.heartbeats import EXECUTOR_LAST_RESORT_SECONDS, EXECUTOR_SUSPECT_SECONDS
from omnibus.bus.messages import ExecutorStatus
from omnibus.errors import Overloaded
from omnibus_gateway.routing.draining import DrainRate

#: Seconds that an executor may hold work without a step before its stage counts as stuck.
STUCK_AFTER_SECONDS = 15.0
#: Fraction of a heartbeat's foreign work that is applied at once. All gateways receive the same heartbeat: if they
#: applied all of it, all would leave a busy replica together, and then all return.
FOREIGN_WORK_WEIGHT = 0.1
#: Foreign work below this many invocations counts as zero.
MIN_FOREIGN_WORK = 0.1
#: Foreign invocations by which replicas may differ and count as equal: a heartbeat is one sample of a number that
#: changes all the time.
FOREIGN_WORK_TOLERANCE = 1.0
#: Options of which the error that ended an executor is kept.
MAX_FAULTS = 256
#: Invocations whose work is averaged.
MAX_AVERAGED_INVOCATIONS = 1000


class ExecutorPool:
    """The executors of one option, and the mean work of an invocation.

    ``credits`` is the plan's limit of invocations in flight at each; 0 without one.
    """

    __slots__ = ("credits", "members", "sent", "turn", "work")

    def __init__(self, credits: int = 0) -> None:
        self.credits = credits
        self.members: dict[str, ExecutorEntry] = {}
        self.turn = 0
        self.work = 0.0
        self.sent = 0

    @property
    def mean_work(self) -> float:
        """Mean tokens of an invocation here; 1 before the first."""
        return self.work / self.sent if self.sent else 1.0


class ExecutorEntry:
    """One executor and its load.

    ``outstanding`` is the unfinished work that this gateway sent, in tokens. ``own`` counts it in invocations, and
    ``nodes`` in nodes of their graphs, such as the items of an encoder. ``foreign`` counts the invocations of other
    gateways, from the heartbeats.
    """

    __slots__ = ("drain", "foreign", "nodes", "outstanding", "own", "pool", "progressed", "seen", "status")

    def __init__(self, status: ExecutorStatus, now: float, pool: ExecutorPool) -> None:
        self.status = status
        self.pool = pool
        self.drain = DrainRate(slots=status.slots)
        self.outstanding = 0.0
        self.own = self.nodes = 0
        self.foreign = float(status.inflight)
        self.seen = now
        self.progressed = now

    def update_status(self, status: ExecutorStatus, now: float) -> None:
        if status.steps != self.status.steps or not status.inflight:
            self.progressed = now
        self.foreign += FOREIGN_WORK_WEIGHT * (max(0, status.inflight - self.own) - self.foreign)
        if self.foreign < MIN_FOREIGN_WORK:
            self.foreign = 0.0
        self.status = status
        self.seen = now

    def charge_work(self, work: float, first: bool = True) -> None:
        """Add a node of ``work`` tokens that was sent; ``first`` of its invocation's nodes here."""
        self.outstanding += work
        self.nodes += 1
        pool = self.pool
        pool.work += work
        if first:
            self.own += 1
            pool.sent += 1
            if pool.sent >= MAX_AVERAGED_INVOCATIONS:
                pool.sent, pool.work = pool.sent // 2, pool.work / 2

    def discharge_work(self, work: float, last: bool = True) -> None:
        """Remove a node that finished or was cancelled; ``last`` of its invocation's nodes here."""
        self.outstanding -= work
        self.nodes -= 1
        self.own -= last

    @property
    def rows(self) -> float:
        """Rows of batches that invocations here take; those of other gateways count like this one's.

        Each item of an encoder is a row. Components of one executor batch separately: an invocation that uses all of
        them takes one row of each.
        """
        own = max(float(self.own), self.nodes / max(1, len(self.status.components)))
        return own + self.foreign * (own / self.own if self.own else 1.0)

    @property
    def credits(self) -> int:
        """Most invocations in flight: its own setting, or the plan's if that is lower."""
        return min(self.status.credits, self.pool.credits or self.status.credits)

    @property
    def available_credit(self) -> float:
        """Invocations that it can accept before it is busy, as estimated here."""
        return self.credits - self.own - self.foreign

    def is_fit(self, now: float, within: float = EXECUTOR_SUSPECT_SECONDS) -> bool:
        """Return True if it is ready and sent a heartbeat recently."""
        return self.status.state == "ready" and now - self.seen < within

    def is_stuck(self, now: float) -> bool:
        return self.status.inflight > 0 and now - self.progressed > STUCK_AFTER_SECONDS

    def health_state(self, now: float) -> str:
        """Return ``ok``, ``stuck`` or ``silent``."""
        return "stuck" if self.is_stuck(now) else "ok" if self.is_fit(now) else "silent"


class ExecutorTable:
    """All executors by id."""

    def __init__(self) -> None:
        self._members: dict[str, ExecutorEntry] = {}
        self._pools: dict[tuple[str, str], ExecutorPool] = {}
        self._faults: dict[tuple[str, str], str] = {}
        self._credits: Mapping[tuple[str, str], int] = {}
        #: True if the plan limits the invocations in flight at some executors.
        self.has_credits = False
        #: Incremented when an executor joins, leaves, or changes its state.
        self.version = 0

    def handle_status(self, status: ExecutorStatus) -> bool:
        """Apply a status event; returns True if the executor just left."""
        member = self._members.get(status.id)
        kind = (status.model, status.option)
        if status.fault:
            self._faults[kind] = status.fault
            if len(self._faults) > MAX_FAULTS:
                del self._faults[next(iter(self._faults))]
        elif self._faults and status.state == "ready":
            self._faults.pop(kind, None)
        if status.state == "gone":
            self.remove(status.id)
            return member is not None
        now = time.monotonic()
        if member is not None and (member.status.model, member.status.option) == kind:
            self.version += member.status.state != status.state or member.status.origin != status.origin
            member.update_status(status, now)
            return False
        self.remove(status.id)
        pool = self._pools.setdefault(kind, ExecutorPool(self._credits.get(kind, 0)))
        self._members[status.id] = pool.members[status.id] = ExecutorEntry(status, now, pool)
        self.version += 1
        return False

    def remove(self, executor: str) -> None:
        member = self._members.pop(executor, None)
        if member is None:
            return
        self.version += 1
        del member.pool.members[executor]
        if not member.pool.members:
            del self._pools[member.status.model, member.status.option]

    def use_credits(self, credits: Mapping[tuple[str, str], int]) -> None:
        """Limit the invocations in flight at each executor to ``credits``, by model and option."""
        self._credits = credits
        self.has_credits = bool(credits)
        for kind, pool in self._pools.items():
            pool.credits = credits.get(kind, 0)

    def all_take(self, parameter: str) -> bool:
        """Return True if every executor's build accepts calls with ``parameter``."""
        return all(parameter in member.status.takes for member in self._members.values())

    def start_fault(self, model: str) -> str:
        """Return the error that ended an executor of ``model`` before it was ready; empty if there was none since."""
        return next((fault for (model_name, _), fault in self._faults.items() if model_name == model), "")

    def get(self, executor: str) -> ExecutorEntry | None:
        return self._members.get(executor)

    def check_credits(self, executors: Iterable[str]) -> None:
        """Raises ``Overloaded`` if one of ``executors`` has as many requests in flight as the plan allows."""
        for id in executors:
            member = self._members.get(id)
            if member is not None and member.pool.credits and member.available_credit <= 0:
                raise Overloaded(
                    f"executor {id} has {member.credits} requests in flight, as many as keep the plan's goals: "
                    "try again later",
                    retry_after=member.drain.seconds_to_next_end() or 1.0,
                )

    def drain_rates(self, executors: Iterable[str]) -> list[DrainRate]:
        """Return the drain rates of the known ``executors``."""
        members = self._members
        return [members[id].drain for id in executors if id in members]

    def larger_executors(self, components: frozenset[str]) -> frozenset[str]:
        """Return executors that run all of ``components`` and more; none if ``components`` is empty."""
        return frozenset(
            id for id, member in self._members.items() if components and components < set(member.status.components)
        )

    def executors_on(self, node: str) -> frozenset[str]:
        """Return the executors on ``node``, a machine."""
        return frozenset(id for id, member in self._members.items() if member.status.node == node)

    def fit_executors(self, model: str, option: str, exclude: frozenset[str] = frozenset()) -> list[ExecutorEntry]:
        """Return the executors of ``option`` that may get work now."""
        pool = self._pools.get((model, option))
        if pool is None:
            return []
        now = time.monotonic()
        candidates = (
            [member for id, member in pool.members.items() if id not in exclude] if exclude else pool.members.values()
        )
        return [  # ``is_fit``, without a call for each member of each request
            member
            for member in candidates
            if member.status.state == "ready" and now - member.seen < EXECUTOR_SUSPECT_SECONDS
        ] or [member for member in candidates if member.is_fit(now, EXECUTOR_LAST_RESORT_SECONDS)]

    def serving_executors(
        self, model: str, option: str, exclude: frozenset[str] = frozenset(), origin: str = ""
    ) -> list[ExecutorEntry]:
        """Return fit executors of ``option``, those of ``origin`` if it has any.

        Executors that name no origin match any.
        """
        fit = self.fit_executors(model, option, exclude)
        if origin and len(fit) > 1:
            fit = [member for member in fit if member.status.origin in ("", origin)] or fit
        return fit

    def work_by_executor(self, members: Sequence[ExecutorEntry], turn: int = 0) -> dict[str, float]:
        """Return the work of ``members`` of one option by id.

        It is in tokens, and includes other gateways'. The first member rotates; ``turn`` is this gateway's offset.
        """
        if len(members) < 2:
            return {member.status.id: member.outstanding for member in members}
        pool = members[0].pool
        first = (turn + pool.turn) % len(members)
        pool.turn += 1
        mean, least = pool.mean_work, min(member.foreign for member in members) + FOREIGN_WORK_TOLERANCE
        return {
            member.status.id: member.outstanding + max(0.0, member.foreign - least) * mean
            for member in (*members[first:], *members[:first])
        }

    def least_loaded(self, members: Sequence[ExecutorEntry], turn: int = 0) -> str:
        """Return the first of ``members`` (several) with the least work.

        Avoids building ``work_by_executor``: each request pays this for each of its options.
        """
        pool = members[0].pool
        first = (turn + pool.turn) % len(members)
        pool.turn += 1
        mean, least = pool.mean_work, min([member.foreign for member in members]) + FOREIGN_WORK_TOLERANCE
        best_member, found_work = members[first], inf
        for member in (*members[first:], *members[:first]):
            work = member.outstanding
            if member.foreign > least:
                work += (member.foreign - least) * mean
            if work < found_work:
                best_member, found_work = member, work
        return best_member.status.id

    def option_work(self, model: str, option: str) -> float:
        """Return the work of ``option`` in tokens, including other gateways'."""
        pool = self._pools.get((model, option))
        members = pool.members.values() if pool is not None else ()
        return sum(member.outstanding + member.foreign * member.pool.mean_work for member in members)

    def silent_executors(self, seconds: float = EXECUTOR_SUSPECT_SECONDS) -> Iterator[str]:
        """Yield executors without a heartbeat for ``seconds``."""
        now = time.monotonic()
        for member in list(self._members.values()):
            if now - member.seen >= seconds:
                yield member.status.id

    def statuses(self) -> list[ExecutorStatus]:
        return [member.status for member in self._members.values()]

    def executor_states(self) -> list[tuple[tuple[str, str], str]]:
        """Return the model and option, and the state, of each executor."""
        now = time.monotonic()
        return [((one.status.model, one.status.option), one.health_state(now)) for one in self._members.values()]

    def stage_states(self, model: str) -> dict[str, str]:
        """Return the state of each served component of ``model``: ``ok`` or why it makes no progress."""
        now = time.monotonic()
        states: dict[str, str] = {}
        for member in self._members.values():
            if member.status.model != model:
                continue
            for component in member.status.components:
                if states.get(component) != "ok":
                    states[component] = member.health_state(now)
        return states

    def option_state(self, model: str, option: str) -> str:
        """Return the best state of the executors of ``option``; empty without any."""
        now = time.monotonic()
        pool = self._pools.get((model, option))
        states = {member.health_state(now) for member in pool.members.values()} if pool is not None else set()
        return next((state for state in ("ok", "stuck", "silent") if state in states), "")
