"""Attempts of invocations on an executor.

A later attempt may start while nodes of an earlier one continue: those that do not depend on lost results.
"""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from omnibus import tracing
from omnibus.bus.messages import Hop
from omnibus.executor.job import LiveJob
from omnibus.graph import Invocation


@dataclass(eq=False)
class LiveAttempt:
    """One attempt of one invocation, and its nodes here."""

    invocation: Invocation
    jobs: dict[int, LiveJob] = field(default_factory=dict)
    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    hops: list[Hop] = field(default_factory=list)  # of earlier nodes, to be forwarded
    trace: tracing.Carrier = field(default_factory=dict)
    over: bool = False  # the invocation has ended: its tensors in the arena have no more readers
    earlier: "LiveAttempt | None" = None  # an earlier attempt, some of whose nodes continue

    def iter_attempts(self) -> "Iterator[LiveAttempt]":
        """Yield this attempt and the earlier ones."""
        each: LiveAttempt | None = self
        while each is not None:
            yield each
            each = each.earlier

    def cancel_nodes(self, nodes: Iterable[int]) -> None:
        """Cancel ``nodes``; the others continue."""
        for node in nodes:
            if self.jobs.pop(node, None) is not None:
                self.tasks[node].cancel()


class Attempts:
    """All attempts by invocation. Its length counts invocations."""

    def __init__(self) -> None:
        self._newest: dict[str, LiveAttempt] = {}

    def __len__(self) -> int:
        return len(self._newest)

    def __iter__(self) -> Iterator[LiveAttempt]:
        return (each for newest in list(self._newest.values()) for each in newest.iter_attempts())

    def newest_attempt(self, invocation: str) -> LiveAttempt | None:
        return self._newest.get(invocation)

    def find_attempt(self, invocation: str, attempt: int) -> LiveAttempt | None:
        """Return the attempt with that number; None if it has no more work."""
        live = self._newest.get(invocation)
        while live is not None and live.invocation.attempt != attempt:
            live = live.earlier
        return live

    def add(self, live: LiveAttempt) -> None:
        """Add a new attempt; earlier ones with work continue."""
        live.earlier = self._newest.get(live.invocation.id)
        self._newest[live.invocation.id] = live

    def stop_superseded(self, invocation: Invocation) -> None:
        """Stop the nodes of earlier attempts that ``invocation`` runs again."""
        newest = self._newest.get(invocation.id)
        for live in list(newest.iter_attempts()) if newest is not None else ():
            runs = invocation.attempts or (invocation.attempt,) * len(invocation.nodes)
            self.cancel_nodes(live, [node for node in live.jobs if runs[node] != live.invocation.attempt])

    def cancel_nodes(self, live: LiveAttempt, nodes: Iterable[int]) -> None:
        """Cancel ``nodes`` of one attempt."""
        live.cancel_nodes(nodes)
        if not live.jobs:
            self.remove_attempt(live)

    def remove_attempt(self, live: LiveAttempt) -> bool:
        """Remove an attempt without running nodes. Returns False if it was removed before."""
        newest = self._newest.get(live.invocation.id)
        if newest is live:
            if live.earlier is None:
                del self._newest[live.invocation.id]
            else:
                self._newest[live.invocation.id] = live.earlier
            return True
        before = (
            next((each for each in newest.iter_attempts() if each.earlier is live), None)
            if newest is not None
            else None
        )
        if before is not None:
            before.earlier = live.earlier
        return before is not None

    def pop(self, invocation: str) -> list[LiveAttempt]:
        """Remove and return all attempts of ``invocation``."""
        newest = self._newest.pop(invocation, None)
        return [] if newest is None else list(newest.iter_attempts())
