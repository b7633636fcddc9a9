"""One invocation in flight: what was sent where, what came back, what is still out."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from omnibus.bus.messages import Hop
from omnibus.errors import OmnibusError, StageUnavailable
from omnibus.graph import HANDLE, Invocation
from omnibus.recorded import Moved
from omnibus.tracing import Span
from services.gateway.members import Member, Members
from services.gateway.route import Route
from services.gateway.streams import Fetch, ResultStream
from services.gateway.tape import Tape

#: Routes the invocation again, without the executors named: the same path rules, pins and graph.
Again = Callable[[frozenset[str]], Route]

#: Characters of why an attempt was given up.
SAID = 200
_HANDLE = f'"{HANDLE}"'.encode()


class Running:
    """State of one invocation at its gateway. Owned by the dispatcher; read by the app."""

    def __init__(
        self,
        invocation: Invocation,
        work: Sequence[float],
        again: Again,
        fetch: Fetch,
        members: Members,
        tapes: Mapping[tuple[int, str], Tape] | None = None,
    ) -> None:
        self.invocation = invocation
        self.again = again
        self.tapes = tapes or {}  # of what nodes pass to each other, where that is kept
        self.streams = {key: ResultStream(*key, self._fetch(key, fetch)) for key in invocation.outputs}
        self.hops: dict[int, Hop] = {}
        self.accepted: set[str] = set()
        self.lost: set[str] = set()  # executors that refused, were busy or died
        self.moves: list[Moved] = []  # attempts that were given up
        self.failed = -1  # the node that failed, as far as that is known
        self.failure: OmnibusError | None = None
        self.span: Span | None = None  # None while traces are off
        #: Executors that nothing is sent to, and what is called when all others were sent an attempt.
        self.absent: frozenset[str] = frozenset()
        self.on_sent: Callable[[Running], None] | None = None
        self.over = False
        self.body = b""  # the invocation as it was sent
        self.on_settled: Callable[[], None] | None = None
        self.sent = 0.0  # when this attempt was sent, monotonic seconds
        self._work = work
        self._charged: dict[int, tuple[str, Member | None]] = {}
        self._left: Counter[str] = Counter()  # unfinished nodes by executor
        self._members = members

    @property
    def id(self) -> str:
        return self.invocation.id

    def _fetch(self, key: tuple[int, str], fetch: Fetch) -> Fetch:
        """What is kept was read already."""
        tape = self.tapes.get(key)
        return fetch if tape is None else lambda _: tape.last

    def charge(self) -> None:
        """Count this invocation's work at the executors of its route."""
        for node, executor in enumerate(self.invocation.route):
            member = self._members.get(executor)
            self._charged[node] = (executor, member)
            self._left[executor] += 1
            if member is not None:
                member.charge(self._work[node], first=self._left[executor] == 1)

    def finished(self, hop: Hop) -> None:
        """A node is done: its executor has that much less to do."""
        self.hops[hop.node] = hop
        if hop.node in self._charged:
            self._discharge(hop.node)
        if self.on_settled is not None and not self._charged:
            self.on_settled()

    def discharge(self) -> None:
        """Nothing of this invocation is out any more."""
        for node in list(self._charged):
            self._discharge(node)

    def _discharge(self, node: int) -> None:
        executor, member = self._charged.pop(node)
        self._left[executor] -= 1
        if member is not None:
            member.discharge(self._work[node], last=not self._left[executor])

    @property
    def reported(self) -> bool:
        """Whether every node has said when it was finished."""
        return len(self.hops) == len(self.invocation.nodes)

    def waits_for(self, executor: str) -> bool:
        """Whether a node on ``executor`` is not finished yet."""
        return self._left[executor] > 0

    def others_for(self, executor: str) -> bool:
        """Whether somebody else can take the work of ``executor``. To lose the only one that lives helps nobody."""
        try:
            self.again(frozenset({*self.lost, executor}))
        except OmnibusError:
            return False
        return True

    def gone(self, executor: str) -> StageUnavailable:
        """What is wrong once ``executor`` is dead: the error names the stage that it runs."""
        nodes, route = self.invocation.nodes, self.invocation.route
        stage = next((node.component for node, each in zip(nodes, route, strict=True) if each == executor), "")
        return StageUnavailable(f"executor {executor} of stage {stage!r} is gone", stage=stage, executor=executor)

    @property
    def may_hold_tensors(self) -> bool:
        """A single node with only small inputs puts nothing into the arena, nor did an earlier attempt."""
        invocation = self.invocation
        return len(invocation.nodes) > 1 or invocation.attempt > 0 or not self.body or _HANDLE in self.body

    def gave_up(self, reason: str, error: OmnibusError) -> None:
        """This attempt is lost, and why."""
        where = self.invocation.attempt
        self.moves.append(Moved(where, time.time(), reason, error.executor, error.message[:SAID]))

    def moved(self, route: Route) -> None:
        """Begin the next attempt on ``route``."""
        self.discharge()
        self.accepted.clear()
        self.hops.clear()
        self.failed = -1
        self._work = route.work
        self.invocation = msgspec.structs.replace(
            self.invocation,
            path=route.path,
            options=route.options,
            route=route.executors,
            attempt=self.invocation.attempt + 1,
        )
        for stream in self.streams.values():
            stream.restart()
        for tape in self.tapes.values():
            tape.restart()

    def fail(self, error: OmnibusError) -> None:
        if self.failure is None:
            self.failure = error
            for stream in self.streams.values():
                stream.fail(error)
