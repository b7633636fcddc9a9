"""Late reports of nodes that were still running when their invocation ended."""

import asyncio
from collections.abc import Callable

from omnibus.bus.messages import Hop
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.routing.executors import ExecutorTable

#: Seconds that executors have to report their computation for an invocation that ended early.
REPORT_SECONDS = 1.0


class _Ended:
    """An ended invocation, its missing reports and a callback."""

    def __init__(self, running: InflightInvocation, nodes: set[tuple[int, int]], then: Callable[[], None]) -> None:
        self.running = running
        self.nodes = nodes
        self.then = then
        self.timer: asyncio.TimerHandle | None = None


class LateReports:
    """Ended invocations whose executors may still report."""

    def __init__(self, members: ExecutorTable) -> None:
        self._members = members
        self._ended: dict[str, _Ended] = {}

    def wait(self, running: InflightInvocation, then: Callable[[], None]) -> None:
        """Call ``then`` when all nodes of ``running`` have reported or timed out."""
        attempts = running.attempts
        nodes = {
            (node, attempts[node])
            for node, executor in enumerate(running.executors)
            if node not in running.hops and executor not in running.lost and self._members.get(executor) is not None
        } - running.unfinished.keys()
        if not nodes or running.id in self._ended:
            then()
            return
        ended_invocation = self._ended[running.id] = _Ended(running, nodes, then)
        ended_invocation.timer = asyncio.get_running_loop().call_later(REPORT_SECONDS, self._finish, running.id)

    def add_report(self, hop: Hop) -> None:
        """Add a report of an invocation that is not running."""
        ended_invocation = self._ended.get(hop.inv)
        if ended_invocation is None:
            return
        if hop.attempt < 0:
            ended_invocation.running.add_unfinished(hop)
            ended_invocation.nodes.discard((hop.node, ~hop.attempt))
        elif ended_invocation.running.is_current(hop.node, hop.attempt):  # it finished before it received the end
            ended_invocation.running.hops[hop.node] = hop
            ended_invocation.nodes.discard((hop.node, hop.attempt))
        if not ended_invocation.nodes:
            self._finish(hop.inv)

    def _finish(self, id: str) -> None:
        ended_invocation = self._ended.pop(id, None)
        if ended_invocation is not None:
            if ended_invocation.timer is not None:
                ended_invocation.timer.cancel()
            ended_invocation.then()

    def close(self) -> None:
        """Stop waiting for reports."""
        for id in list(self._ended):
            self._finish(id)
