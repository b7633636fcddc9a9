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
from omnibus_gateway.request.factory import RequestFactory
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
        self, name: str, asked: AppCanaryRequest, tried: WorkerSupervisor, serving: WorkerSupervisor | None
    ) -> AppCanaryView:
        """Send the last calls of app ``name`` to ``tried``.

        Raises ``CanaryConflict`` if a call differs, or if none can be compared; its message has a table of them.
        """
        recorded = await find_calls(self._runs.records.bus, name, asked.last)
        found: list[ComparedCall] = []
        rules = GateRules(asked.tolerance, asked.score)
        try:
            async with asyncio.timeout(asked.within):
                for each in recorded:
                    compared = await self._compare(each, rules, tried, serving)
                    found.append(compared)
        except TimeoutError:
            raise CanaryConflict(
                f"the new version of the app {name!r} does not serve: only {len(found)} of {len(recorded)} recorded "
                f"calls ran in {asked.within:g} s. There was no spare room, or they take longer: allow more seconds"
            ) from None
        _check_calls(name, found)
        return AppCanaryView(sum(each.outcome == SAME for each in found), tuple(found))

    async def _compare(
        self, recorded: RecordedCall, rules: GateRules, tried: WorkerSupervisor, serving: WorkerSupervisor | None
    ) -> ComparedCall:
        try:
            found = await self._run_in_room(recorded, tried)
        except OmnibusError as error:  # its media are gone, or it was recorded as digests
            return ComparedCall(recorded.id, SKIPPED, error.message[:MAX_ROW_CHARS])
        if isinstance(found.failure, Overloaded):
            return ComparedCall(recorded.id, SKIPPED, "the executors had no room for it")
        if found.failure is None and is_as_recorded(recorded, found):
            return ComparedCall(recorded.id, SAME)
        control = await self._run_control(recorded, serving)
        if control.failure is not None:
            return ComparedCall(recorded.id, SKIPPED, f"the current version fails as well: {control.failure.message}")
        if found.failure is not None:
            what = f"{found.failure.code}: {found.failure.message}"
            return ComparedCall(recorded.id, FAILED, what, found.failure.stage)
        return _compare_answers(recorded.id, control, found, rules)

    async def _run_control(self, recorded: RecordedCall, serving: WorkerSupervisor | None) -> ReplayedCall:
        """Send the same call to the current version."""
        if serving is None:
            return ReplayedCall(failure=Conflict("no version serves at this gateway"))
        try:
            return await self._run_in_room(recorded, serving)
        except OmnibusError as error:
            return ReplayedCall(failure=error)

    # Room

    async def _run_in_room(self, recorded: RecordedCall, worker: WorkerSupervisor) -> ReplayedCall:
        """Run a call while there is spare capacity; cancel and repeat it when client requests need the capacity."""
        while True:
            places = self._known_places(recorded)
            while not self._room.is_free(places):  # noqa: ASYNC110 users come and go on their own
                await asyncio.sleep(LOOK_SECONDS)
            request = MirroredRequest(self._runs, recorded)
            found = await self._run_until_crowded(recorded, worker, request)
            if found is not None:
                return found
            await asyncio.sleep(PAUSE_SECONDS)

    async def _run_until_crowded(
        self, recorded: RecordedCall, worker: WorkerSupervisor, request: MirroredRequest
    ) -> ReplayedCall | None:
        work = asyncio.get_running_loop().create_task(replay_call(worker, request, recorded, self._media))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=LOOK_SECONDS)
                if not work.done() and not self._room.is_free(request.places, mine=request.running_count):
                    return None
            return work.result()
        finally:
            await until_cancelled(work)

    def _known_places(self, recorded: RecordedCall) -> list[Place]:
        """Return the places where the call was recorded that still have executors."""
        found = []
        for model, option in recorded.places:
            try:
                if self._runs.router.serving_executors(model, option):
                    found.append((model, option))
            except OmnibusError:  # the plan no longer has this model
                continue
        return found


def _compare_answers(id: str, control: ReplayedCall, tried: ReplayedCall, rules: GateRules) -> ComparedCall:
    if not has_comparison(control, tried):
        return ComparedCall(id, SKIPPED, "its answer is empty, and no output of its graphs is in both")
    stage, what = describe_call_difference(control, tried, rules)
    return ComparedCall(id, DIFFERED, what, stage) if what else ComparedCall(id, SAME)


def _check_calls(name: str, found: Sequence[ComparedCall]) -> None:
    """Raise ``CanaryConflict`` unless at least one call was compared, and none differs."""
    bad = [each for each in found if each.outcome in (DIFFERED, FAILED)]
    compared = sum(each.outcome != SKIPPED for each in found)
    if bad:
        raise CanaryConflict(
            f"the new version of the app {name!r} does not serve: {len(bad)} of {compared} recorded calls were not "
            f"answered as before\n{_format_table(bad)}"
        )
    if not compared:
        raise CanaryConflict(
            f"the new version of the app {name!r} does not serve: none of {len(found)} recorded calls could be "
            "compared. Set OMNIBUS_GATEWAY_RECORD=full, or omit the canary"
            + (f"\n{_format_table(found)}" if found else "")
        )


def _format_table(calls: Sequence[ComparedCall]) -> str:
    width = max(len(each.id) for each in calls)
    rows = [
        f"{each.id:<{width}}  {each.outcome:<8}  {' '.join(each.what.split())[:MAX_ROW_CHARS]}"
        for each in calls[:MAX_SHOWN]
    ]
    left = [f"and {len(calls) - MAX_SHOWN} more"] if len(calls) > MAX_SHOWN else []
    return "\n".join([f"{'ID':<{width}}  OUTCOME   WHAT", *rows, *left])
