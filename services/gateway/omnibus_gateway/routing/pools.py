"""Executors of one option: their load, and the choice of a few of them for a request.

A stage with up to ``MAX_COMPARED`` executors compares all of them for each request. A larger one compares a random
sample and the executors that an affinity names (Mitzenmacher, The Power of Two Choices, 2001). Everything that a
request reads here takes a time that does not grow with the number of executors.
"""

import time
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from random import random
from zlib import crc32

from omnibus.bus.heartbeats import EXECUTOR_SUSPECT_SECONDS
from omnibus.bus.messages import ExecutorStatus
from omnibus_gateway.routing.draining import DrainRate

#: Fraction of a heartbeat's foreign work that is applied at once. All gateways receive the same heartbeat: if they
#: applied all of it, all would leave a busy replica together, and then all return.
FOREIGN_WORK_WEIGHT = 0.1
#: Foreign work below this many invocations counts as zero.
MIN_FOREIGN_WORK = 0.1
#: Seconds that an executor may hold work without a step before its stage counts as stuck.
STUCK_AFTER_SECONDS = 15.0
#: Executors of an option up to which a request compares all of them.
MAX_COMPARED = 32
#: Executors of a larger option that a request compares. Two would balance the load; more find the last free places.
SAMPLE_SIZE = 16
#: Executors of a large option that a key names, for all gateways.
KEY_EXECUTORS = 4
#: Steps of one unit in which foreign work is counted: sums of such fractions are exact, so an idle option has none.
_FOREIGN_STEPS = 1 << 20
#: Invocations whose work is averaged.
MAX_AVERAGED_INVOCATIONS = 1000


class ExecutorPool:
    """The executors of one option, and the mean work of an invocation.

    ``credits`` is the plan's limit of invocations in flight at each; 0 without one. ``outstanding`` and ``foreign`` are
    the sums over the executors.
    """

    __slots__ = (
        "_by_node", "_free", "_orders", "_ring", "credits", "foreign", "members", "outstanding", "sent", "turn", "work",
    )  # fmt: skip

    def __init__(self, credits: int = 0) -> None:
        self.credits = credits
        self.members: dict[str, ExecutorEntry] = {}
        self.turn = 0
        self.work = 0.0
        self.sent = 0
        self.outstanding = self.foreign = 0.0
        self._ring: list[tuple[int, str]] = []  # hashes of the ids
        self._free: dict[ExecutorEntry, None] = {}  # with credit, if there is a limit
        self._orders: dict[str, list[ExecutorEntry]] = {}  # ready ones by origin, each list twice in a row
        self._by_node: dict[str, list[ExecutorEntry]] = {}

    @property
    def mean_work(self) -> float:
        """Mean tokens of an invocation here; 1 before the first."""
        return self.work / self.sent if self.sent else 1.0

    @property
    def is_large(self) -> bool:
        """True if requests compare a sample of the executors."""
        return len(self.members) > MAX_COMPARED

    def add_member(self, member: "ExecutorEntry") -> None:
        self.members[member.status.id] = member
        insort(self._ring, _ring_point(member.status.id))
        self.foreign += member.foreign
        self.forget_orders()
        self.note_credit(member)

    def remove_member(self, member: "ExecutorEntry") -> None:
        """Remove ``member``. Work that it still reports counts nowhere."""
        del self.members[member.status.id]
        del self._ring[bisect_left(self._ring, _ring_point(member.status.id))]
        self.outstanding -= member.outstanding
        self.foreign -= member.foreign
        self._free.pop(member, None)
        self.forget_orders()
        member.pool = ExecutorPool(self.credits)

    def forget_orders(self) -> None:
        """Compute the ready executors again, because one changed its state, origin or node."""
        self._orders.clear()
        self._by_node.clear()

    def use_credits(self, credits: int) -> None:
        self.credits = credits
        for member in self.members.values():
            self.note_credit(member)

    def note_credit(self, member: "ExecutorEntry") -> None:
        """Record whether ``member`` can accept an invocation under the plan's limit."""
        if self.credits and member.available_credit > 0:
            self._free[member] = None
        else:
            self._free.pop(member, None)

    def sample_ready(self, origin: str) -> Sequence["ExecutorEntry"]:
        """Return ``SAMPLE_SIZE`` random ready executors of ``origin``, or of all without it; fewer if there are fewer.

        They are every so many of a list, from a random one. Each pair of executors is as likely as any other one, which
        suffices for an even load.
        """
        order = self._orders.get(origin)
        if order is None:
            order = self._orders[origin] = self._list_ready(origin) * 2
        count = len(order) // 2
        if count <= SAMPLE_SIZE:
            return order[:count]
        first = int(random() * count)
        step = 1 + int(random() * ((count - 1) // (SAMPLE_SIZE - 1)))
        return order[first : first + SAMPLE_SIZE * step : step]

    def _list_ready(self, origin: str) -> list["ExecutorEntry"]:
        ready = [member for member in self.members.values() if member.status.state == "ready"]
        return [member for member in ready if member.status.origin in ("", origin)] or ready if origin else ready

    def find_free(self) -> Iterator["ExecutorEntry"]:
        """Yield executors with credit."""
        return iter(self._free)

    def members_on(self, node: str) -> Sequence["ExecutorEntry"]:
        """Return the executors on ``node``, a machine."""
        if not self._by_node:
            for member in self.members.values():
                self._by_node.setdefault(member.status.node, []).append(member)
        return self._by_node.get(node, ())

    def key_members(self, key: str) -> list["ExecutorEntry"]:
        """Return the executors that ``key`` names: equal for all gateways with equal executors.

        Method: consistent hashing (Karger et al., 1997) with several points for each key.
        """
        digest, ring = blake2b(key.encode(), digest_size=4 * KEY_EXECUTORS).digest(), self._ring
        points = [int.from_bytes(digest[at : at + 4], "big") for at in range(0, len(digest), 4)]
        return [self.members[ring[bisect_left(ring, (point, "")) % len(ring)][1]] for point in points]


def _ring_point(executor: str) -> tuple[int, str]:
    return crc32(executor.encode()), executor


class ExecutorSample(list["ExecutorEntry"]):
    """Executors of a large option that a request compares. ``include`` adds others that an affinity names."""

    __slots__ = ("_exclude", "_now", "_origin", "_refused", "pool")

    def __init__(self, pool: ExecutorPool, exclude: frozenset[str], origin: str) -> None:
        self.pool, self._exclude, self._origin = pool, exclude, origin
        self._now = now = time.monotonic()
        self._refused: frozenset[str] = frozenset()
        super().__init__(
            [
                member
                for member in pool.sample_ready(origin)
                if now - member.seen < EXECUTOR_SUSPECT_SECONDS and member.status.id not in exclude
            ]
        )

    def avoid_nodes(self, nodes: frozenset[str]) -> None:
        """Drop executors on ``nodes``, and do not include them later."""
        self._refused = nodes
        self[:] = [member for member in self if member.status.node not in nodes]

    def find_free(self) -> list["ExecutorEntry"]:
        """Keep the executors with fewer requests than the plan allows, or find others. Empty if there are none."""
        if not self.pool.credits:
            return self
        free = [member for member in self if member.available_credit > 0]
        self[:] = free or list(islice(filter(self._accepts, self.pool.find_free()), SAMPLE_SIZE)) or self
        return self if self[0].available_credit > 0 else []

    def include(self, members: Iterable["ExecutorEntry"]) -> None:
        """Add those of ``members`` that can accept the request."""
        limited = self.pool.credits
        for member in members:
            if member not in self and self._accepts(member) and not (limited and member.available_credit <= 0):
                self.append(member)

    def _accepts(self, member: "ExecutorEntry") -> bool:
        status = member.status
        return (
            member.is_fit(self._now)
            and status.id not in self._exclude
            and status.node not in self._refused
            and (not self._origin or status.origin in ("", self._origin))
        )


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
        before, foreign = self.foreign, max(0, status.inflight - self.own)
        self.status = status
        self.seen = now
        if foreign or before:
            after = before + FOREIGN_WORK_WEIGHT * (foreign - before)
            self.foreign = 0.0 if after < MIN_FOREIGN_WORK else int(after * _FOREIGN_STEPS) / _FOREIGN_STEPS
            self.pool.foreign += self.foreign - before
        if self.pool.credits:
            self.pool.note_credit(self)

    def charge_work(self, work: float, first: bool = True) -> None:
        """Add a node of ``work`` tokens that was sent; ``first`` of its invocation's nodes here."""
        self.outstanding += work
        self.nodes += 1
        pool = self.pool
        pool.work += work
        pool.outstanding += work
        if first:
            self.own += 1
            pool.sent += 1
            if pool.credits:
                pool.note_credit(self)
            if pool.sent >= MAX_AVERAGED_INVOCATIONS:
                pool.sent, pool.work = pool.sent // 2, pool.work / 2

    def discharge_work(self, work: float, last: bool = True) -> None:
        """Remove a node that finished or was cancelled; ``last`` of its invocation's nodes here."""
        self.outstanding -= work
        self.nodes -= 1
        self.own -= last
        pool = self.pool
        pool.outstanding -= work
        if pool.credits:
            pool.note_credit(self)

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
