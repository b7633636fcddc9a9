"""Canaries of apps: a new version answers the last recorded calls before it takes over.

A call passes if its answer and the outputs of its graphs equal the recorded ones bit by bit. Otherwise the current
version answers it again, and the rules of the gate compare the two answers. A difference that another model or another
batch causes is thus not attributed to the app. Calls run one at a time, and only while there is spare capacity, like
comparisons with candidates (``omnibus_gateway.shadow.mirror``).
"""

import asyncio
from collections.abc import Sequence

from omnibus.canary.gate import GateRules
from omnibus.errors import Conflict, OmnibusError, Overloaded
from omnibus.service import until_cancelled
from omnibus_gateway.apps.call_replay import (
    ReplayedCall,
    describe_call_difference,
    has_comparison,
    is_as_recorded,
    replay_call,
)
from omnibus_gateway.apps.mirrored_request import MirroredRequest
from omnibus_gateway.apps.recorded_calls import RecordedCall, find_calls
from omnibus_gateway.apps.response_schemas import AppCanaryRequest, AppCanaryView, ComparedCall
from omnibus_gateway.apps.worker_supervisor import WorkerSupervisor
from omnibus_gateway.request.request import RequestFactory
from omnibus_gateway.shadow.spare_room import LOOK_SECONDS, PAUSE_SECONDS, Place, SpareRoom

#: Rows of the table of differences.
MAX_SHOWN = 20
#: Characters of the text in a row.
MAX_ROW_CHARS = 160

SAME, DIFFERED, FAILED, SKIPPED = "same", "differed", "failed", "skipped"


class CanaryConflict(Conflict):
    """New version that does not take over: its answers differ, or no call could be compared."""

    code = "canary_conflict"


class AppCanary:
    """Tries new versions of apps while ``room`` has spare capacity."""

    def __init__(self, runs: RequestFactory, room: SpareRoom) -> None:
        self._runs = runs
        self._room = room
        self._media = runs.records.media

    async def prove(
        self, name: str, request: AppCanaryRequest, candidate: WorkerSupervisor, serving: WorkerSupervisor | None
    ) -> AppCanaryView:
        """Send the last calls of app ``name`` to ``candidate``.

        Raises ``CanaryConflict`` if a call differs, or if none can be compared; its message has a table of them.
        """
        calls = await find_calls(self._runs.records.bus, name, request.last)
        comparisons: list[ComparedCall] = []
        rules = GateRules(request.tolerance, request.score)
        try:
            async with asyncio.timeout(request.within):
                for each in calls:
                    comparison = await self._compare(each, rules, candidate, serving)
                    comparisons.append(comparison)
        except TimeoutError:
            raise CanaryConflict(
                f"the new version of the app {name!r} does not serve: only {len(comparisons)} of {len(calls)} recorded "
                f"calls ran in {request.within:g} s. There was no spare room, or they take longer: allow more seconds"
            ) from None
        _check_calls(name, comparisons)
        return AppCanaryView(sum(each.outcome == SAME for each in comparisons), tuple(comparisons))

    async def _compare(
        self,
        recorded_call: RecordedCall,
        rules: GateRules,
        candidate: WorkerSupervisor,
        serving: WorkerSupervisor | None,
    ) -> ComparedCall:
        try:
            replayed_call = await self._run_in_room(recorded_call, candidate)
        except OmnibusError as error:  # its media are gone, or it was recorded as digests
            return ComparedCall(recorded_call.id, SKIPPED, error.message[:MAX_ROW_CHARS])
        if isinstance(replayed_call.failure, Overloaded):
            return ComparedCall(recorded_call.id, SKIPPED, "the executors had no room for it")
        if replayed_call.failure is None and is_as_recorded(recorded_call, replayed_call):
            return ComparedCall(recorded_call.id, SAME)
        control = await self._run_control(recorded_call, serving)
        if control.failure is not None:
            return ComparedCall(
                recorded_call.id, SKIPPED, f"the current version fails as well: {control.failure.message}"
            )
        if replayed_call.failure is not None:
            description = f"{replayed_call.failure.code}: {replayed_call.failure.message}"
            return ComparedCall(recorded_call.id, FAILED, description, replayed_call.failure.stage)
        return _compare_answers(recorded_call.id, control, replayed_call, rules)

    async def _run_control(self, recorded_call: RecordedCall, serving: WorkerSupervisor | None) -> ReplayedCall:
        """Send the same call to the current version."""
        if serving is None:
            return ReplayedCall(failure=Conflict("no version serves at this gateway"))
        try:
            return await self._run_in_room(recorded_call, serving)
        except OmnibusError as error:
            return ReplayedCall(failure=error)

    # Room

    async def _run_in_room(self, recorded_call: RecordedCall, worker: WorkerSupervisor) -> ReplayedCall:
        """Run a call while there is spare capacity; cancel and repeat it when client requests need the capacity."""
        while True:
            places = self._known_places(recorded_call)
            while not self._room.is_free(places):  # noqa: ASYNC110 users come and go on their own
                await asyncio.sleep(LOOK_SECONDS)
            request = MirroredRequest(self._runs, recorded_call)
            replayed_call = await self._run_until_crowded(recorded_call, worker, request)
            if replayed_call is not None:
                return replayed_call
            await asyncio.sleep(PAUSE_SECONDS)

    async def _run_until_crowded(
        self, recorded_call: RecordedCall, worker: WorkerSupervisor, request: MirroredRequest
    ) -> ReplayedCall | None:
        work = asyncio.get_running_loop().create_task(replay_call(worker, request, recorded_call, self._media))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=LOOK_SECONDS)
                if not work.done() and not self._room.is_free(request.places, own_count=request.running_count):
                    return None
            return work.result()
        finally:
            await until_cancelled(work)

    def _known_places(self, recorded_call: RecordedCall) -> list[Place]:
        """Return the places where the call was recorded that still have executors."""
        live_places = []
        for model, option in recorded_call.places:
            try:
                if self._runs.router.serving_executors(model, option):
                    live_places.append((model, option))
            except OmnibusError:  # the plan no longer has this model
                continue
        return live_places


def _compare_answers(id: str, control: ReplayedCall, replayed_call: ReplayedCall, rules: GateRules) -> ComparedCall:
    if not has_comparison(control, replayed_call):
        return ComparedCall(id, SKIPPED, "its answer is empty, and no output of its graphs is in both")
    stage, difference = describe_call_difference(control, replayed_call, rules)
    return ComparedCall(id, DIFFERED, difference, stage) if difference else ComparedCall(id, SAME)


def _check_calls(name: str, comparisons: Sequence[ComparedCall]) -> None:
    """Raise ``CanaryConflict`` unless at least one call was compared, and none differs."""
    bad = [each for each in comparisons if each.outcome in (DIFFERED, FAILED)]
    count = sum(each.outcome != SKIPPED for each in comparisons)
    if bad:
        raise CanaryConflict(
            f"the new version of the app {name!r} does not serve: {len(bad)} of {count} recorded calls were not "
            f"answered as before\n{_format_table(bad)}"
        )
    if not count:
        raise CanaryConflict(
            f"the new version of the app {name!r} does not serve: none of {len(comparisons)} recorded calls could be "
            "compared. Set OMNIBUS_GATEWAY_RECORD=full, or omit the canary"
            + (f"\n{_format_table(comparisons)}" if comparisons else "")
        )


def _format_table(calls: Sequence[ComparedCall]) -> str:
    width = max(len(each.id) for each in calls)
    rows = [
        f"{each.id:<{width}}  {each.outcome:<8}  {' '.join(each.what.split())[:MAX_ROW_CHARS]}"
        for each in calls[:MAX_SHOWN]
    ]
    left = [f"and {len(calls) - MAX_SHOWN} more"] if len(calls) > MAX_SHOWN else []
    return "\n".join([f"{'ID':<{width}}  OUTCOME   WHAT", *rows, *left])
