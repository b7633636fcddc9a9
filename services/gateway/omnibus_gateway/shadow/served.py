"""Client requests of a canary, compared with those of the other executors: failures and slow ones."""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from typing import Any

from omnibus.canary.candidate import Candidate
from omnibus.canary.gate import SERVED, SERVED_FAILED, SERVED_SLOW
from omnibus.errors import Rejected
from omnibus.plan import CANDIDATE_MARK
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.routing.executors import ExecutorTable

#: Maximum number of remembered durations of other requests per model and type, and the minimum for a comparison.
MAX_DURATIONS, MIN_DURATIONS = 400, 20
#: Quantile of the durations of other requests above which a request is slow.
_SLOW_QUANTILE = 0.95
#: Maximum number of remembered executors of candidates.
MAX_EXECUTORS = 1024


class ServedRequests:
    """Counts per candidate since the last ``take``."""

    def __init__(self, members: ExecutorTable) -> None:
        self._members = members
        self._durations: dict[tuple[str, str], deque[float]] = defaultdict(lambda: deque(maxlen=MAX_DURATIONS))
        self._counts: dict[str, Counter[str]] = {}
        self._findings: dict[str, dict[str, Any]] = {}  # the last failure of each candidate
        self._executors: dict[str, None] = {}

    def add(self, candidate: Candidate, running: InflightInvocation, status: str) -> None:
        """Count an ended request to the model of ``candidate``."""
        invocation = running.invocation
        if status == "cancelled":  # its client has disconnected
            return
        seconds = time.time() - invocation.created
        durations = self._durations[invocation.model, invocation.type]
        was_lost = self._was_lost(running)
        if not was_lost and not any(option.endswith(CANDIDATE_MARK) for option in invocation.options):
            if status == "done":
                durations.append(seconds)
            return
        counts = self._counts.setdefault(candidate.id, Counter())
        counts[SERVED] += 1
        if was_lost or (status != "done" and not isinstance(running.failure, Rejected)):
            counts[SERVED_FAILED] += 1
            self._findings[candidate.id] = _describe_failure(running)
        elif len(durations) >= MIN_DURATIONS and seconds > sorted(durations)[int(_SLOW_QUANTILE * len(durations))]:
            counts[SERVED_SLOW] += 1

    def _was_lost(self, running: InflightInvocation) -> bool:
        """Return True if it moved away from an executor of a candidate."""
        return any(move.executor in self._executors for move in running.moves)

    def note_executors(self) -> None:
        """Remember the current executors of candidates."""
        for status in self._members.statuses():
            if status.option.endswith(CANDIDATE_MARK):
                self._executors[status.id] = None
        while len(self._executors) > MAX_EXECUTORS:
            del self._executors[next(iter(self._executors))]

    def take(self) -> Iterator[tuple[str, dict[str, int], dict[str, Any] | None]]:
        """Yield id, new counts and latest failure of each candidate."""
        counts, self._counts = self._counts, {}
        findings, self._findings = self._findings, {}
        for id, candidate_counts in counts.items():
            yield id, dict(candidate_counts), findings.get(id)

    def clear(self) -> None:
        """Forget everything: there is no canary any longer."""
        self._durations.clear()
        self._counts.clear()
        self._findings.clear()
        self._executors.clear()


def _describe_failure(running: InflightInvocation) -> dict[str, Any]:
    """Describe a request that failed on a candidate or left it."""
    invocation, error = running.invocation, running.failure
    description = (
        f"{error.code}: {error.message}" if error is not None else "its executor was lost, and it moved to another"
    )
    return {
        "id": invocation.id,
        "type": invocation.type,
        "at": round(time.time(), 3),
        "route": list(invocation.route),
        "outcome": "failed",
        "what": f"a user's request: {description}",
        "stage": error.stage if error is not None else "",
    }
