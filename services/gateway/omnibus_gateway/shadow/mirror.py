"""Mirrors finished requests to candidates in the background, on spare capacity.

A hash of its id decides whether a request is mirrored, so that every gateway and every run chooses the same ones. One
comparison runs at a time: the request runs again on the serving path and on the candidate's, one after the other, in
alternating order. Neither run is recorded, counted as load, or charged to a tenant: their weight is 0. A comparison
starts only while the executors have spare capacity, and is cancelled when client requests need it. Without a candidate,
nothing here runs, and requests do not call it at their end.

Requests that a canary serves to clients count separately: failures and slow ones, beside those of other executors.
"""

import asyncio
import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from omnibus import graph
from omnibus.bus.messages import Hop
from omnibus.canary.candidate import (
    DIFFERED,
    FAILED,
    PAIRS,
    SERVED,
    SERVED_FAILED,
    SERVED_SLOW,
    SLOWER,
    Candidate,
    GateRules,
    find_control,
)
from omnibus.errors import OmnibusError, Overloaded, Rejected, StoreUnavailable
from omnibus.graph import Invocation
from omnibus.metrics import GATEWAY
from omnibus.plan import CANDIDATE_MARK, Path
from omnibus.service import until_cancelled
from omnibus.store import Store
from omnibus_gateway.core import ExecutorTable, InflightInvocation, Records, Router
from omnibus_gateway.rerun.differences import OutputDifference, count_comparable, find_differences
from omnibus_gateway.rerun.options import ReplayOptions
from omnibus_gateway.rerun.replayer import MirroredRun, Replayer
from omnibus_gateway.rerun.spare_room import LOOK_SECONDS, PAUSE_SECONDS, SpareRoom

#: Seconds that a comparison waits for room.
ROOM_SECONDS = 5.0

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


#: Seconds by which runs may always differ: smaller differences are noise.
MIN_SLOWER_SECONDS = 0.005
#: Maximum number of differences in a finding.
MAX_NAMED_DIFFERENCES = 5

Outcome = Literal["same", "failed", "slower", "differed"]


class Comparison(NamedTuple):
    """Result of two runs: counts for the candidate, and a description of the problem, if any."""

    outcome: Outcome
    counts: dict[str, int]
    finding: dict[str, Any] | None


def is_void(recorded_invocation: Invocation, control: MirroredRun, candidate: MirroredRun) -> bool:
    """Return True if the comparison is meaningless.

    The control failed, the candidate had no room, or no common output has content.
    """
    if control.failure is not None or isinstance(candidate.failure, Overloaded):
        return True
    one_sided = (control.outputs.keys() ^ candidate.outputs.keys()) & set(recorded_invocation.outputs)
    return candidate.failure is None and not one_sided and not count_comparable(control.outputs, candidate.outputs)


def compare_runs(
    candidate: Candidate, recorded_invocation: Invocation, control: MirroredRun, candidate_run: MirroredRun
) -> Comparison:
    """Compare two runs that are not void."""
    counts = {PAIRS: 1}
    about = {
        "id": recorded_invocation.id,
        "type": recorded_invocation.type,
        "at": round(time.time(), 3),
        "route": list(candidate_run.route),
    }
    if candidate_run.failure is not None:
        counts[FAILED] = 1
        description = f"{candidate_run.failure.code}: {candidate_run.failure.message}"
        return Comparison(
            "failed", counts, {**about, "outcome": "failed", "what": description, "stage": candidate_run.failure.stage}
        )
    differences = find_differences(
        recorded_invocation.nodes, control.outputs, candidate_run.outputs, candidate.rules, recorded_invocation.outputs
    )
    slower = _is_slower(control.seconds, candidate_run.seconds, candidate.rules)
    counts["compared"] = count_comparable(control.outputs, candidate_run.outputs)
    if slower:
        counts[SLOWER] = 1
    if differences:
        counts[DIFFERED] = 1
        counts[f"differed.{differences[0].component}"] = 1
        description = "; ".join(_difference_text(each) for each in differences[:MAX_NAMED_DIFFERENCES])
        finding = {**about, "outcome": "differed", "what": description, "stage": differences[0].component}
        return Comparison("differed", counts, finding)
    if slower:
        stage, description = _slowest_stage(recorded_invocation, control, candidate_run)
        return Comparison("slower", counts, {**about, "outcome": "slower", "what": description, "stage": stage})
    return Comparison("same", counts, None)


def _difference_text(difference: OutputDifference) -> str:
    return f"{difference.component}.{difference.output}: {difference.what}"


def _is_slower(control: float, candidate_seconds: float, rules: GateRules) -> bool:
    return candidate_seconds > rules.slack * control + MIN_SLOWER_SECONDS


def _slowest_stage(
    recorded_invocation: Invocation, control: MirroredRun, candidate_run: MirroredRun
) -> tuple[str, str]:
    """Return the first stage that is much slower, and a description.

    Much slower means at least half of the largest slowdown. A slowdown of later stages may be their wait for it.
    """
    delays = {
        node: _stage_seconds(candidate_run.hops[node]) - _stage_seconds(control.hops[node])
        for node in control.hops.keys() & candidate_run.hops.keys()
    }
    text = f"{1000 * candidate_run.seconds:.0f} ms instead of {1000 * control.seconds:.0f} ms"
    if not delays:
        return "", text
    most = max(delays.values())
    node = min(each for each, seconds in delays.items() if 2 * seconds >= most or seconds == most)
    component = recorded_invocation.nodes[node].component
    return component, f"{text}, {1000 * delays[node]:.0f} ms of it in {component}"


def _stage_seconds(hop: Hop) -> float:
    """Return the seconds of a stage after its first inputs have arrived.

    This includes the time before it opens its inputs and before its engine begins.
    """
    return hop.end - max((hop.taken, *hop.arrived))


log = logging.getLogger(__name__)

#: Maximum number of requests that wait for their comparison; the oldest are dropped.
MAX_WAITING = 16
#: Seconds between two reports of served requests.
REPORT_SECONDS = 1.0


def is_sampled(id: str, share: float) -> bool:
    """Return True if request ``id`` is in the mirrored ``share``; all gateways agree on this."""
    return int.from_bytes(blake2b(id.encode(), digest_size=8).digest(), "big") < share * 2**64


class CandidateMirror:
    """Follows the candidates in ``store``; ``records`` reports the requests that end here."""

    def __init__(
        self,
        router: Router,
        records: Records,
        replayer: Replayer,
        store: Store,
        count_waiting: Callable[[], int] = lambda: 0,
    ) -> None:
        """Create a mirror; ``count_waiting`` counts waiting requests at this gateway."""
        self._room = SpareRoom(router, count_waiting)
        self._router = router
        self._records = records
        self._replayer = replayer
        self._store = store
        self._served = ServedRequests(router.members)
        self._candidates: Mapping[str, Candidate] = {}
        self._waiting: deque[Invocation] = deque(maxlen=MAX_WAITING)
        self._arrived, self._active = asyncio.Event(), asyncio.Event()
        self._turn = 0
        self._tasks: list[asyncio.Task[None]] = []

    def startup(self) -> None:
        loop = asyncio.get_running_loop()
        work = (self._follow_candidates(), self._compare_all(), self._report_served())
        self._tasks = [loop.create_task(each) for each in work]

    async def shutdown(self) -> None:
        self._records.on_end = None
        for task in self._tasks:
            await until_cancelled(task)

    async def _follow_candidates(self) -> None:
        async for candidates in self._store.candidate_changes():
            self.set_candidates(candidates)

    def set_candidates(self, candidates: Mapping[str, Candidate]) -> None:
        """Mirror to the active ones of ``candidates``, a mapping by model."""
        self._candidates = {name: each for name, each in candidates.items() if each.is_active}
        self._records.on_end = self._on_end if self._candidates else None
        if self._candidates:
            self._active.set()
        else:
            self._active.clear()
            self._waiting.clear()
            self._served.clear()

    def _on_end(self, running: InflightInvocation, status: str) -> None:
        invocation = running.invocation
        candidate = self._candidates.get(invocation.model)
        if candidate is None or invocation.replay_of:
            return
        if candidate.state == "canary":
            self._served.add(candidate, running, status)
        if status != "done" or invocation.attempt:
            return
        if is_sampled(invocation.id, candidate.mirror):
            self._waiting.append(invocation)
            self._arrived.set()

    async def _report_served(self) -> None:
        """Store the counts of the canary's requests every second."""
        while True:
            await self._active.wait()
            await asyncio.sleep(REPORT_SECONDS)
            self._served.note_executors()
            for id, counts, finding in self._served.take():
                await self._add_counts(id, counts, finding)

    # Comparisons

    async def _compare_all(self) -> None:
        while True:
            await self._arrived.wait()
            if not self._waiting:
                self._arrived.clear()
                continue
            invocation = self._waiting.pop()  # the newest: its media are most likely still available
            try:
                outcome = await self._compare(invocation)
            except OmnibusError as error:
                log.info("%s is not compared: %s", invocation.id, error.message)
                outcome = "skipped"
            except Exception:  # an error in one comparison must not end the others
                log.exception("%s could not be compared", invocation.id)
                outcome = "skipped"
            GATEWAY.mirrored.labels(invocation.model, outcome).inc()
            if outcome == "no room":
                await asyncio.sleep(PAUSE_SECONDS)

    async def _compare(self, invocation: Invocation) -> str:
        """Compare one request if possible; returns the outcome."""
        candidate = self._candidates.get(invocation.model)
        paths = self._find_paths(candidate, invocation) if candidate is not None else None
        if candidate is None or paths is None:
            return "skipped"
        if not await self._wait_for_room(invocation.model, paths):
            return "no room"
        work = asyncio.get_running_loop().create_task(self._run_pair(candidate, invocation, paths))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=LOOK_SECONDS)
                if not work.done() and not self._has_room(invocation.model, paths, own_count=1):
                    return "no room"
            comparison = work.result()
        finally:
            await until_cancelled(work)
        if comparison is None:
            return "void"
        await self._add_counts(candidate.id, comparison.counts, comparison.finding)
        return comparison.outcome

    def _find_paths(self, candidate: Candidate, invocation: Invocation) -> tuple[Path, Path] | None:
        """Return the serving path and the candidate's; None if the candidate cannot run the request."""
        model = self._router.get_model(invocation.model)
        paths = model.paths_for(frozenset(node.component for node in invocation.nodes))
        candidate_path = next((path for path in paths if path.is_candidate), None)
        control = find_control(paths, candidate_path, candidate) if candidate_path is not None else None
        return (control, candidate_path) if control is not None and candidate_path is not None else None

    async def _run_pair(
        self, candidate: Candidate, invocation: Invocation, paths: tuple[Path, Path]
    ) -> Comparison | None:
        recorded_invocation = graph.decode_invocation(
            graph.encode_invocation(invocation)
        )  # a copy, as for other replays
        self._turn += 1
        order: Sequence[int] = (0, 1) if self._turn % 2 else (1, 0)
        runs = {
            side: await self._replayer.run_mirrored(
                recorded_invocation, ReplayOptions(path=paths[side].name), f"{invocation.id}-{side}-{self._turn}"
            )
            for side in order
        }
        if is_void(recorded_invocation, runs[0], runs[1]):
            return None
        return await asyncio.to_thread(compare_runs, candidate, recorded_invocation, runs[0], runs[1])

    async def _add_counts(self, id: str, counts: Mapping[str, int], finding: Mapping[str, Any] | None = None) -> None:
        with suppress(StoreUnavailable):  # counting resumes when the store is back
            await self._store.add_counts(id, counts, finding)

    # Room

    async def _wait_for_room(self, model: str, paths: tuple[Path, Path]) -> bool:
        ends = time.monotonic() + ROOM_SECONDS
        while not self._has_room(model, paths):
            if time.monotonic() >= ends:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True

    def _has_room(self, model: str, paths: tuple[Path, Path], own_count: int = 0) -> bool:
        """Return True if the executors of ``paths`` have room without ``own_count`` comparisons."""
        options = {option for path in paths for option in path.options.values()}
        return self._room.is_free([(model, option) for option in options], own_count)
