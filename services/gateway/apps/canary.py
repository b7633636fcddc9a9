"""Canaries of apps: the last recorded calls are given to a new version before it takes over, and its answers compared.

A call that is answered bit by bit as it was recorded, with the same outputs of its graphs, is the same. Where one is
not, the version that serves answers it again, and both are held side by side by the gate's rules: so what another model
or another batch changes is not blamed on the app. Calls run one after the other, and only while there is spare room, as
comparisons with candidates do (``services.gateway.shadow.mirror``).
"""

import asyncio
from collections.abc import Sequence

from omnibus.canary.gate import GateRules
from omnibus.errors import Conflict, OmnibusError, Overloaded
from omnibus.service import until_cancelled
from services.gateway.apps.call_replay import (
    ReplayedCall,
    describe_call_difference,
    has_comparison,
    is_as_recorded,
    replay_call,
)
from services.gateway.apps.mirrored_request import MirroredRequest
from services.gateway.apps.recorded_calls import RecordedCall, find_calls
from services.gateway.apps.response_schemas import AppCanaryRequest, AppCanaryView, ComparedCall
from services.gateway.apps.worker_supervisor import WorkerSupervisor
from services.gateway.request.factory import RequestFactory
from services.gateway.shadow.spare_room import LOOK_SECONDS, PAUSE_SECONDS, Place, SpareRoom

#: Rows of the table that says what differed.
MAX_SHOWN = 20
#: Characters of a row's text.
MAX_ROW_CHARS = 160

SAME, DIFFERED, FAILED, SKIPPED = "same", "differed", "failed", "skipped"


class CanaryConflict(Conflict):
    """A new version that does not take over: it does not do what was recorded, or nothing is known of that."""

    code = "canary_conflict"


class AppCanary:
    """Tries new versions of apps while there is ``room`` beside the requests that ``runs`` opens."""

    def __init__(self, runs: RequestFactory, room: SpareRoom) -> None:
        self._runs = runs
        self._room = room
        self._media = runs.records.media

    async def prove(
        self, name: str, asked: AppCanaryRequest, tried: WorkerSupervisor, serving: WorkerSupervisor | None
    ) -> AppCanaryView:
        """Give the last calls of app ``name`` to ``tried``. Raises ``CanaryConflict`` unless all that can be compared
        are the same; its message has a table of what is not."""
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
                f"the new version of the app {name!r} does not serve: after {asked.within:g} s only {len(found)} of "
                f"{len(recorded)} recorded calls ran: there was no spare room, or they take longer; allow more seconds"
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
            return ComparedCall(recorded.id, SKIPPED, "there was no room for it")
        if found.failure is None and is_as_recorded(recorded, found):
            return ComparedCall(recorded.id, SAME)
        control = await self._run_control(recorded, serving)
        if control.failure is not None:
            return ComparedCall(recorded.id, SKIPPED, f"what serves fails as well: {control.failure.message}")
        if found.failure is not None:
            what = f"{found.failure.code}: {found.failure.message}"
            return ComparedCall(recorded.id, FAILED, what, found.failure.stage)
        return _compare_answers(recorded.id, control, found, rules)

    async def _run_control(self, recorded: RecordedCall, serving: WorkerSupervisor | None) -> ReplayedCall:
        """The same call, answered by what serves."""
        if serving is None:
            return ReplayedCall(failure=Conflict("no version serves at this gateway"))
        try:
            return await self._run_in_room(recorded, serving)
        except OmnibusError as error:
            return ReplayedCall(failure=error)

    # Room

    async def _run_in_room(self, recorded: RecordedCall, worker: WorkerSupervisor) -> ReplayedCall:
        """One run while there is room; it is given up and begun again when users' requests need that."""
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
        """The places where the call was recorded, as far as there still are executors."""
        found = []
        for model, option in recorded.places:
            try:
                if self._runs.router.serving_executors(model, option):
                    found.append((model, option))
            except OmnibusError:  # the plan has no such model any more
                continue
        return found


def _compare_answers(id: str, control: ReplayedCall, tried: ReplayedCall, rules: GateRules) -> ComparedCall:
    if not has_comparison(control, tried):
        return ComparedCall(id, SKIPPED, "its answer is empty, and no output of its graphs is in both")
    stage, what = describe_call_difference(control, tried, rules)
    return ComparedCall(id, DIFFERED, what, stage) if what else ComparedCall(id, SAME)


def _check_calls(name: str, found: Sequence[ComparedCall]) -> None:
    """Raise ``CanaryConflict`` unless something was compared, and all of it is the same."""
    bad = [each for each in found if each.outcome in (DIFFERED, FAILED)]
    compared = sum(each.outcome != SKIPPED for each in found)
    if bad:
        raise CanaryConflict(
            f"the new version of the app {name!r} does not serve: {len(bad)} of {compared} recorded calls were not "
            f"answered as before\n{_format_table(bad)}"
        )
    if not compared:
        raise CanaryConflict(
            f"the new version of the app {name!r} does not serve: no recorded call could be given to it, of "
            f"{len(found)}; set OMNIBUS_GATEWAY_RECORD=full, or leave the canary out"
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
