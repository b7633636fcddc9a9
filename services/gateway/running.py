"""One invocation in flight: what was sent where, what came back, what is still out."""

from collections.abc import Callable, Sequence

import msgspec

from omnibus.bus.messages import Hop
from omnibus.errors import OmnibusError
from omnibus.graph import Invocation
from services.gateway.route import Route, Router, Ticket
from services.gateway.streams import Fetch, ResultStream


class Running:
    """State of one invocation at its gateway. Owned by the dispatcher; read by the app."""

    def __init__(
        self, invocation: Invocation, ticket: Ticket, work: Sequence[int], fetch: Fetch, router: Router
    ) -> None:
        self.invocation = invocation
        self.ticket = ticket
        self.streams = {key: ResultStream(*key, fetch) for key in invocation.outputs}
        self.hops: dict[int, Hop] = {}
        self.accepted: set[str] = set()
        self.lost: set[str] = set()  # executors that refused, were busy or died
        self.failure: OmnibusError | None = None
        self.over = False
        self.body = b""  # the invocation as it was sent
        self.on_settled: Callable[[], None] | None = None
        self._work = work
        self._charged: dict[int, tuple[str, int]] = {}
        self._router = router

    @property
    def id(self) -> str:
        return self.invocation.id

    def charge(self) -> None:
        """Count this invocation's work at the executors of its route."""
        for node, executor in enumerate(self.invocation.route):
            self._charged[node] = (executor, self._work[node])
            self._router.add(executor, self._work[node])

    def finished(self, hop: Hop) -> None:
        """A node is done: its executor has that much less to do."""
        self.hops[hop.node] = hop
        executor, work = self._charged.pop(hop.node, ("", 0))
        if executor:
            self._router.add(executor, -work)
        if self.on_settled is not None and not self._charged:
            self.on_settled()

    def discharge(self) -> None:
        """Nothing of this invocation is out any more."""
        for executor, work in self._charged.values():
            self._router.add(executor, -work)
        self._charged.clear()

    @property
    def reported(self) -> bool:
        """Whether every node has said when it was finished."""
        return len(self.hops) == len(self.invocation.nodes)

    def waits_for(self, executor: str) -> bool:
        """Whether a node on ``executor`` is not finished yet."""
        return any(charged == executor for charged, _ in self._charged.values())

    def moved(self, route: Route) -> None:
        """Begin the next attempt on ``route``."""
        self.discharge()
        self.accepted.clear()
        self.hops.clear()
        self.invocation = msgspec.structs.replace(
            self.invocation,
            path=route.path,
            options=route.options,
            route=route.executors,
            attempt=self.invocation.attempt + 1,
        )
        for stream in self.streams.values():
            stream.restart()

    def fail(self, error: OmnibusError) -> None:
        if self.failure is None:
            self.failure = error
            for stream in self.streams.values():
                stream.fail(error)
