"""Brings the store's plan to the target: stage it, wait for its executors, swap.

Several planners may run. The planner that staged a change leads it until the change is complete or that planner stops
renewing its lease. A planner follows an epoch that another one wrote, until there is something new to plan.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from msgspec import UNSET

from omnibus.cluster.presence import ReadyExecutors
from omnibus.errors import ProtocolError, StoreUnavailable
from omnibus.plan import ModelPlan, Plan
from omnibus.settings import PlannerSettings
from omnibus.store import PlanLed, PlanProblem, PlanState, StaleEpoch, Store, plan_mark
from omnibus_planner.rollout.path import RolloutPath, RolloutStep
from omnibus_planner.rollout.readiness import ClassifiedChanges, PlanChange, Trials, independent_changes, merge_changes
from omnibus_planner.rollout.transition_plan import Models, PlanTarget

log = logging.getLogger(__name__)

#: Offset of the path sequence; a constant, so that every process can compute a plan's decisions.
SEED = 0
#: Seconds until the next attempt after an error of the store: first and longest.
INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.5, 5.0
#: Seconds for which a planner leads a change without renewal, and between two checks for another leader.
LEASE_SECONDS, POLL_SECONDS = 3.0, 1.0
INFINITE_SECONDS = float("inf")
#: Source of reported problems.
PROBLEM_SOURCE = "planner"
STORE_LOST_REASON = "the store had lost it"
#: Most reasons of one plan.
MAX_REASONS = 5


class PlanRollout:
    """The only writer of plans in this process. ``announce`` is called with each plan that it makes current."""

    def __init__(
        self, store: Store, settings: PlannerSettings, ready: ReadyExecutors, announce: Callable[[Plan], None]
    ) -> None:
        self.plan: Plan | None = None
        self._store = store
        self._ready = ready
        self._announce = announce
        self._trials = Trials(settings.ready, settings.retry)
        # Processes that follow the store switch roles; workloads of a cluster are of one role each.
        self._path = RolloutPath(settings.retry, switches=not settings.reconcile)
        self._leaves = settings.ready / 2  # seconds that stopping executors may take before others start
        self._swaps = -INFINITE_SECONDS  # when the last swap was
        self._me = secrets.token_hex(4)
        self._target = PlanTarget({}, "")
        self._pinned, self._pin = 0, PlanTarget({}, "")
        self._base = 0  # the epoch that the work continues from
        self._pending = False  # whether the target may be new to all planners
        self._open = False  # whether the target is not reached yet
        self._staged: tuple[int, Plan | None] = (0, None)
        self._told: tuple[str, float] | None = None
        self._woken = asyncio.Event()

    def set_target(self, target: PlanTarget) -> None:
        """Replace the target; the reason of an unfinished one is kept as well."""
        before = self._target.reason.split(", ") if self._open else []
        reasons = dict.fromkeys([*before, *target.reason.split(", ")])
        self._target = target._replace(reason=", ".join(list(reasons)[-MAX_REASONS:]))
        self._pending = self._open = True
        self._woken.set()

    @property
    def is_pinned(self) -> bool:
        """True if an operator has pinned an epoch: the target must wait."""
        return self._pinned > 0

    @property
    def staged_plan(self) -> Plan | None:
        """The plan that waits for its executors, in this planner's view."""
        return self._staged[1] if self._staged[0] else None

    @property
    def has_problem(self) -> bool:
        """True if part of the target is postponed."""
        return self._told is not None and bool(self._told[0])

    def wake(self) -> None:
        """Wake the loop after a change."""
        self._woken.set()

    async def run_available_steps(self) -> None:
        """Run all steps that need no waiting. Raises ``StoreUnavailable``."""
        while not await self._try_step():
            pass

    async def run(self) -> None:
        """Run all further steps, until cancelled."""
        pause = INITIAL_BACKOFF_SECONDS
        while True:
            self._woken.clear()
            try:
                wait, pause = await self._try_step(), INITIAL_BACKOFF_SECONDS
            except StoreUnavailable as error:
                log.warning("%s", error)
                wait, pause = pause, min(2 * pause, MAX_BACKOFF_SECONDS)
            try:
                async with asyncio.timeout(wait if wait < INFINITE_SECONDS else None):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def close(self) -> None:
        """Release the lead of a staged plan, for another planner to continue."""
        if self._staged[1] is not None:
            with suppress(StoreUnavailable):
                await self._store.lead_plan(self._me, 0.001)

    # One step

    async def _try_step(self) -> float:
        try:
            return await self._advance_rollout()
        except PlanLed as error:
            log.info("%s", error)
            return POLL_SECONDS
        except StaleEpoch:  # another planner was faster: check its plan
            return 0.0

    async def _advance_rollout(self) -> float:
        """Advance the change as far as possible now; returns the seconds until the next check."""
        stand = await self._store.plan_state()
        if self.plan is not None and stand.epoch < self.plan.epoch:
            await self._restore_plan(self.plan, stand)
            return 0.0
        current = await self._current_plan(stand.epoch)
        goal = await self._resolve_target(stand)
        if not self._should_continue(stand, current, goal):
            return await self._follow_other_planner(stand)
        self._base = stand.epoch
        if stand.staged and not await self._store.lead_plan(self._me, LEASE_SECONDS):
            return POLL_SECONDS
        if goal is None:
            return INFINITE_SECONDS
        if current is None:
            await self._swap_plan(stand, goal, {}, independent_changes({}, goal.models), ())
            return 0.0
        return await self._advance_to_goal(stand, current.models, goal)

    def _should_continue(self, stand: PlanState, current: Plan | None, goal: PlanTarget | None) -> bool:
        """Return True if this planner should continue from the current plan.

        It should if the plan is its own or equals the target, or if there is a new target.
        """
        before, self.plan = self.plan, current or self.plan
        if before is None and current is not None:
            self._announce(current)
        if self._pending or stand.epoch == self._base:
            return True
        if current is not None and goal is not None and current.models == goal.models:
            return True
        if current is not None and current != before:
            log.info("plan epoch %d (%s) is another planner's: following that planner", current.epoch, current.reason)
        return False

    async def _follow_other_planner(self, stand: PlanState) -> float:
        """Follow another planner's plan.

        Its staged plan is dropped once its lead has expired.
        """
        if not stand.staged:
            return INFINITE_SECONDS
        if await self._store.lead_plan(self._me, LEASE_SECONDS):
            await self._store.unstage_plan(self._me)
        return POLL_SECONDS

    async def _advance_to_goal(self, stand: PlanState, models: Models, goal: PlanTarget) -> float:
        now = time.monotonic()
        self._open = models != goal.models
        if not self._open and self.plan is not None and not _is_equal_besides_models(self.plan, goal):
            await self._swap_plan(stand, goal, models, (), ())
            return 0.0
        aim = await self._path.next_step(models, goal, now)
        classified_changes = self._trials.classify_changes(
            independent_changes(models, aim.target.models), self._ready.count_missing, now
        )
        late = [name for change in classified_changes.later for name in change.models]
        if self._path.roll_back(models, aim, late, "; ".join(classified_changes.faults), now):
            return 0.0
        faults = [*aim.faults, *classified_changes.faults]
        await self._report_problem(
            faults,
            min(aim.look, classified_changes.look) if classified_changes.later or aim.look < INFINITE_SECONDS else 0.0,
        )
        if classified_changes.ready:
            await self._swap_plan(
                stand,
                aim.target,
                models,
                classified_changes.ready,
                self._may_start(models, aim, classified_changes.waiting),
            )
            return 0.0
        return min(aim.look - now, await self._wait_for_executors(stand, models, aim, classified_changes) - now)

    async def _wait_for_executors(
        self, stand: PlanState, models: Models, aim: RolloutStep, classified_changes: ClassifiedChanges
    ) -> float:
        """Wait, because no swap is possible now; returns the time of the next check."""
        if classified_changes.waiting:
            await self._stage_changes(stand, models, aim, classified_changes.waiting)
            return min(classified_changes.look, time.monotonic() + LEASE_SECONDS / 3)
        if stand.staged:
            faults = "; ".join([*aim.faults, *classified_changes.faults])
            log.info("staged plan %d is dropped: %s", stand.staged, faults or "it is no longer requested")
            await self._store.unstage_plan(self._me)
            self._staged = (0, None)
        self._pending = False
        return classified_changes.look

    async def _stage_changes(
        self, stand: PlanState, current: Models, aim: RolloutStep, waiting: Sequence[PlanChange]
    ) -> None:
        """Start the executors of ``waiting`` changes, unless they have started."""
        if stand.mark != self._staged[0]:
            stored_plan = await self._read_plan(self._store.staged_plan()) if stand.staged else None
            self._staged = (stand.mark, stored_plan)
            if stored_plan is not None and stored_plan.models == merge_changes(current, aim.target.models, waiting):
                log.info(
                    "plan epoch %d (%s) is staged already: continuing with it", stored_plan.epoch, stored_plan.reason
                )
                self._target = self._target._replace(reason=stored_plan.reason.removesuffix(aim.note))
        known_plan = self._staged[1]
        models = merge_changes(current, aim.target.models, self._may_start(current, aim, waiting))
        if models == current:
            return
        if known_plan is None or known_plan.models != models:
            plan = _build_plan(max(stand.epoch, stand.staged) + 1, models, aim.target)
            await self._store.stage_plan(plan, self._me, LEASE_SECONDS)
            self._staged = (plan_mark(plan), plan)
            log.info("plan epoch %d (%s) is staged until its executors are ready", plan.epoch, plan.reason)
        self._pending = False

    def _may_start(self, current: Models, aim: RolloutStep, waiting: Sequence[PlanChange]) -> Sequence[PlanChange]:
        """Return the changes that need no GPUs of stopping executors."""
        late = time.monotonic() >= self._swaps + self._leaves
        if late or not self._path.must_wait_for_gpus(self._ready.count_present(), current, aim):
            return waiting
        staged_plan, then = self._staged[1], aim.target.models
        staged_models = staged_plan.models if staged_plan is not None else {}
        return [
            change
            for change in waiting
            if all(staged_models.get(name) == then.get(name) for name in change.models)
            or not self._path.uses_declared_gpus(change.needs)
        ]

    async def _swap_plan(
        self,
        stand: PlanState,
        goal: PlanTarget,
        before: Models,
        ready: Sequence[PlanChange],
        waiting: Sequence[PlanChange],
    ) -> None:
        """Apply ``ready`` changes, and keep waiting for the others' executors."""
        number = max(stand.epoch + 1, stand.staged)
        plan = _build_plan(number, merge_changes(before, goal.models, ready), goal)
        then = _build_plan(number + 1, merge_changes(plan.models, goal.models, waiting), goal)
        await self._store.swap_plan(plan, then if waiting else None)
        self._staged = (plan_mark(then), then) if waiting else (0, None)
        self._record_swap(plan)

    def _record_swap(self, plan: Plan) -> None:
        self.plan, self._base, self._pending, self._swaps = plan, plan.epoch, False, time.monotonic()
        self._announce(plan)

    # Current state

    async def _current_plan(self, epoch: int) -> Plan | None:
        """Return the current plan; None if there is none that this build can read."""
        if self.plan is not None and self.plan.epoch == epoch:
            return self.plan
        return await self._read_plan(self._store.plan(epoch)) if epoch else None

    async def _read_plan(self, reading: Awaitable[Plan | None]) -> Plan | None:
        try:
            return await reading
        except ProtocolError as error:
            log.error("%s; writing a new one", error.message)
            return None

    async def _resolve_target(self, stand: PlanState) -> PlanTarget | None:
        """Return the target or the pinned plan; None if that is unavailable."""
        if stand.pin != self._pinned:
            if stand.pin:
                pinned_plan = await self._read_plan(self._store.plan(stand.pin))
                if pinned_plan is None:
                    await self._report_problem(
                        [f"epoch {stand.pin} cannot be served: it is lost, or of another build"], 0.0
                    )
                    return None
                self._pin = PlanTarget(
                    pinned_plan.models,
                    f"rollback to {stand.pin}",
                    pinned_plan.explain,
                    self._target.gpus,
                    prices=pinned_plan.prices,
                )
            else:
                self._target = self._target._replace(reason="resumed")
            self._pinned, self._pending = stand.pin, True
        return self._pin if self._pinned else self._target

    async def _restore_plan(self, known_plan: Plan, stand: PlanState) -> None:
        """Write the plan and the pin again after the store lost them."""
        log.warning("the store lost plan epoch %d: writing it again", known_plan.epoch)
        number = max(known_plan.epoch, stand.epoch) + 1
        plan = _build_plan(
            number,
            known_plan.models,
            PlanTarget(known_plan.models, STORE_LOST_REASON, known_plan.explain, prices=known_plan.prices),
        )
        await self._store.swap_plan(plan, pin=bool(self._pinned))
        self._pinned = number if self._pinned else 0
        if self._base == known_plan.epoch:  # else it was another planner's, and is still followed
            self._base = number
        self.plan = plan
        self._announce(plan)

    async def _report_problem(self, faults: Sequence[str], again: float) -> None:
        """Report postponed changes and reasons to the store, once. ``again`` is of the monotonic clock."""
        report = ("; ".join(faults), again)
        if report == self._told:
            return
        problem = None
        if faults:
            log.error("%s", report[0])
            problem = PlanProblem(time.time(), report[0], time.time() + again - time.monotonic() if again else 0.0)
        await self._store.put_problem(PROBLEM_SOURCE, problem)
        self._told = report


def _is_equal_besides_models(plan: Plan, goal: PlanTarget) -> bool:
    """Return whether ``plan`` has the prices and the placement of ``goal``."""
    return (plan.prices, plan.placement or {}) == (goal.prices, goal.placement)


def _build_plan(epoch: int, models: dict[str, ModelPlan], target: PlanTarget) -> Plan:
    return Plan(
        epoch,
        SEED,
        time.time(),
        models,
        reason=target.reason,
        explain=target.explain,
        prices=target.prices,
        placement=target.placement or UNSET,
    )
