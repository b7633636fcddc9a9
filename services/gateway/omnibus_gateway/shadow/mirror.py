"""Mirrors finished requests to candidates in the background, on spare capacity.

A hash of its id decides whether a request is mirrored, so that every gateway and every run chooses the same ones. One
comparison runs at a time: the request runs again on the serving path and on the candidate's, one after the other, in
alternating order. Neither run is recorded, counted as load, or charged to a tenant: their weight is 0. A comparison
starts only while the executors have spare capacity, and is cancelled when client requests need it. Without a candidate,
nothing here runs, and requests do not call it at their end.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from omnibus import graph
from omnibus.canary.candidate import Candidate
from omnibus.canary.overlay import find_control
from omnibus.errors import OmnibusError, StoreUnavailable
from omnibus.graph import Invocation
from omnibus.metrics import GATEWAY
from omnibus.plan import Path
from omnibus.service import until_cancelled
from omnibus.store import Store
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.replay.options import ReplayOptions
from omnibus_gateway.replay.replay import Replayer
from omnibus_gateway.request.record import Records
from omnibus_gateway.routing.router import Router
from omnibus_gateway.shadow.pair import Comparison, compare_runs, is_void
from omnibus_gateway.shadow.served import ServedRequests
from omnibus_gateway.shadow.spare_room import LOOK_SECONDS, PAUSE_SECONDS, ROOM_SECONDS, SpareRoom

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
