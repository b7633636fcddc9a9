"""Table of the executors that can serve, from their status events alone."""

import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

from omnibus.bus.heartbeats import EXECUTOR_LAST_RESORT_SECONDS, EXECUTOR_SUSPECT_SECONDS
from omnibus.bus.messages import ExecutorStatus
from omnibus.errors import Overloaded
from omnibus_gateway.routing.draining import DrainRate
from omnibus_gateway.routing.pools import STUCK_AFTER_SECONDS as STUCK_AFTER_SECONDS
from omnibus_gateway.routing.pools import ExecutorEntry as ExecutorEntry
from omnibus_gateway.routing.pools import ExecutorPool, ExecutorSample

#: Foreign invocations by which replicas may differ and count as equal: a heartbeat is one sample of a number that
#: changes all the time.
FOREIGN_WORK_TOLERANCE = 1.0
#: Options of which the error that ended an executor is kept.
MAX_FAULTS = 256


class ExecutorTable:
    """All executors by id."""

    def __init__(self) -> None:
        self._members: dict[str, ExecutorEntry] = {}
        self._by_age: OrderedDict[str, ExecutorEntry] = OrderedDict()  # the one heard longest ago first
        self._nodes: dict[str, set[str]] = {}
        self._takes: Counter[tuple[str, ...]] = Counter()
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
            self._update_member(member, status, now)
            return False
        self.remove(status.id)
        pool = self._pools.setdefault(kind, ExecutorPool(self._credits.get(kind, 0)))
        self._members[status.id] = self._by_age[status.id] = member = ExecutorEntry(status, now, pool)
        pool.add_member(member)
        self._index_status(status)
        self.version += 1
        return False

    def _update_member(self, member: ExecutorEntry, status: ExecutorStatus, now: float) -> None:
        before = member.status
        if before.takes != status.takes or before.node != status.node:
            self._unindex_status(before)
            self._index_status(status)
        is_changed = before.state != status.state or before.origin != status.origin
        member.update_status(status, now)
        self._by_age.move_to_end(status.id)
        if is_changed or before.node != status.node:
            member.pool.forget_orders()
        self.version += is_changed

    def _index_status(self, status: ExecutorStatus) -> None:
        self._nodes.setdefault(status.node, set()).add(status.id)
        self._takes[status.takes] += 1

    def _unindex_status(self, status: ExecutorStatus) -> None:
        self._nodes[status.node].discard(status.id)
        if not self._nodes[status.node]:
            del self._nodes[status.node]
        self._takes[status.takes] -= 1
        if not self._takes[status.takes]:
            del self._takes[status.takes]

    def remove(self, executor: str) -> None:
        member = self._members.pop(executor, None)
        if member is None:
            return
        self.version += 1
        del self._by_age[executor]
        self._unindex_status(member.status)
        pool = member.pool
        pool.remove_member(member)
        if not pool.members:
            del self._pools[member.status.model, member.status.option]

    def use_credits(self, credits: Mapping[tuple[str, str], int]) -> None:
        """Limit the invocations in flight at each executor to ``credits``, by model and option."""
        self._credits = credits
        self.has_credits = bool(credits)
        for kind, pool in self._pools.items():
            pool.use_credits(credits.get(kind, 0))

    def all_take(self, parameter: str) -> bool:
        """Return True if every executor's build accepts calls with ``parameter``."""
        return all(parameter in takes for takes in self._takes)

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
        return frozenset(self._nodes.get(node, ()))

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

    def comparable_executors(
        self, model: str, option: str, exclude: frozenset[str] = frozenset(), origin: str = ""
    ) -> list[ExecutorEntry]:
        """Return ``serving_executors`` for one request: of a large option an ``ExecutorSample`` if it is not empty."""
        pool = self._pools.get((model, option))
        if pool is not None and pool.is_large and (sample := ExecutorSample(pool, exclude, origin)):
            return sample
        return self.serving_executors(model, option, exclude, origin)

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
        return pool.outstanding + pool.foreign * pool.mean_work if pool is not None else 0.0

    def silent_executors(self, seconds: float = EXECUTOR_SUSPECT_SECONDS) -> Iterator[str]:
        """Yield executors without a heartbeat for ``seconds``."""
        oldest = time.monotonic() - seconds
        late = []
        for member in self._by_age.values():
            if member.seen > oldest:
                break
            late.append(member.status.id)
        yield from late

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
