"""Device that runs the steps of the real schedule: decoding, shares of prompts, media.

As in real executors, ``omnibus.executor.scheduler`` composes each step within the budgets that goals allow. The parts
of a step run one after the other, and their callers are notified at its end. On a plain ``Device``, the order is that
of arrival, and a long prompt stops the tokens of all others.
"""

from collections import deque
from itertools import groupby
from math import inf
from typing import Any

from omnibus.executor.scheduler import Schedule, StepBudget
from omnibus.executor.sim.device import MAX_TURN_STEPS, CombinedTurn, Device, DeviceTurn, Lane, SimSequence, SimWork
from omnibus.executor.sim.distributions import Curve
from omnibus.executor.step_budget import (
    BudgetSizes,
    CostTable,
    StepCosts,
    StepGoals,
    find_budget,
    measure_costs,
)

#: Least and most prompt tokens in a step; positions of a sequence whose step is measured; size of a prompt that waits
#: for all of the patience.
_MIN_STEP_TOKENS, _MAX_STEP_TOKENS, _TYPICAL_CONTEXT_TOKENS, _LONG_PROMPT_TOKENS = 16, 16384, 1024, 4096


class StagedLane(Lane):
    """One component's works. With ``reads``, its passes are batches of media, otherwise prompts.

    Budgets are for items of ``usual`` tokens.
    """

    def __init__(self, curves: tuple[Curve | None, Curve | None], slots: int, share: int, reads: bool, usual: int):
        super().__init__(*curves, slots, share, reads)
        self.usual = usual
        self.coming: deque[tuple[StagedLane, SimWork]]
        self.schedule: Schedule[Any]

    def queue_work(self, work: SimWork, at: float) -> None:
        work.ready = at
        self.waiting.append(work)
        self.coming.append((self, work))

    def enter_schedule(self, work: SimWork) -> None:
        """Add ``work`` to the schedule as of its ready time."""
        if self.reads:
            self.schedule.add_media(
                work, max(1, work.tokens), work.ready, self, since=work.since, continues=work.continues
            )
        elif self.batch is not None:
            self.schedule.add_prompt(work, max(1, work.tokens), work.ready, since=work.since)
        else:
            self.schedule.add_prefilled(work, work.ready, since=work.since)

    def remove_work(self, work: SimWork, at: float) -> None:
        if not work.gone:
            super().remove_work(work, at)
            self.schedule.remove_key(work)

    def _admit_waiting(self, at: float) -> None:
        """Do nothing: the schedule admits works."""

    def on_admitted(self, work: SimWork) -> None:
        """Start ``work``, which has a slot."""
        self.waiting.remove(work)
        if self.batch is not None:
            self.joining.append(work)
        elif isinstance(work, SimSequence):
            self.active.append(work)
            self.schedule.start_decode(work)

    def _advance_work(self, work: SimWork, at: float, steps: int) -> None:
        if not isinstance(work, SimSequence):
            self.remove_work(work, at)
        elif work in self.joining:
            self.joining.remove(work)
            self.active.append(work)
            self.schedule.start_decode(work)
        super()._advance_work(work, at, steps)


class StagedDevice(Device):
    """Device with ``goals`` for its steps; lanes are encoders, and one language model or its halves."""

    def __init__(self, scale: float, goals: StepGoals) -> None:
        super().__init__(scale)
        self._goals = goals
        self._lanes: dict[SimWork, StagedLane] = {}
        self._coming: deque[tuple[StagedLane, SimWork]] = deque()
        self._schedule: Schedule[SimWork] = Schedule(
            0, StepBudget(0, 0), patience=goals.first_step_seconds, whole=_LONG_PROMPT_TOKENS
        )

    def add_lane(
        self,
        batch: Curve | None,
        step: Curve | None,
        slots: int,
        share: int = 0,
        *,
        reads: bool = False,
        usual: int = 0,
    ) -> Lane:
        lane = StagedLane((batch, step), slots, share, reads, max(1, usual))
        lane.coming, lane.schedule = self._coming, self._schedule
        self.lanes.append(lane)
        self._find_budgets()
        return lane

    def _find_budgets(self) -> None:
        """Measure the costs of steps, as an engine does when it starts; repeated for every lane."""
        lanes = [lane for lane in self.lanes if isinstance(lane, StagedLane)]
        schedule, goals = self._schedule, self._goals
        schedule.slots = max((lane.slots for lane in lanes if not lane.reads), default=0)
        steps = [(lane.step, lane.slots) for lane in lanes if lane.step is not None]
        schedule.costs = StepCosts(goals, self._decode_costs(steps) if steps else None)
        for lane in lanes:
            if lane.batch is None:
                continue
            if lane.reads:
                schedule.kinds[lane] = self._media_budget(lane.batch, lane.slots, lane.usual)
            else:
                schedule.budget = self._prompt_budget(lane.batch, lane.share)

    def _decode_costs(self, steps: list[tuple[Curve, int]]) -> CostTable:
        """Return the slower lane's seconds of a decode step, by sequences."""

        def step_cost(count: int) -> float:
            return self._scale * max(curve.seconds(count, count * _TYPICAL_CONTEXT_TOKENS) for curve, _ in steps)

        return measure_costs(step_cost, 1, max(slots for _, slots in steps), self._goals.tbt or inf)

    def _media_budget(self, curve: Curve, slots: int, usual: int) -> StepBudget:
        items = measure_costs(lambda count: curve.seconds(count, count * usual) * self._scale, 1, slots, self._longest)
        beside, alone = self._find_budget(items, BudgetSizes(1, slots, slots))
        costs = CostTable((count * usual, items.seconds(count)) for count in items.sizes)
        return StepBudget(beside * usual, alone * usual, slots, costs=costs)

    def _prompt_budget(self, curve: Curve, share: float) -> StepBudget:
        sizes = BudgetSizes(_MIN_STEP_TOKENS, _MAX_STEP_TOKENS, _MAX_STEP_TOKENS if share == inf else int(share))
        costs = measure_costs(
            lambda size: curve.seconds(1, size) * self._scale, _MIN_STEP_TOKENS, _MAX_STEP_TOKENS, self._longest
        )
        return StepBudget(*self._find_budget(costs, sizes), least=_MIN_STEP_TOKENS, costs=costs)

    @property
    def _longest(self) -> float:
        """Most seconds of any step; longer ones need not be measured."""
        return max(self._goals.tbt, self._goals.first_step_seconds)

    def _find_budget(self, costs: CostTable, sizes: BudgetSizes) -> tuple[int, int]:
        decode = self._schedule.costs.decode
        return find_budget(costs.seconds, self._goals, decode.seconds(1) if decode is not None else 0.0, sizes)

    def next_turn(self, at: float) -> DeviceTurn | CombinedTurn | None:
        self._enter_ready(at)
        for work in self._schedule.admit_waiting():
            self._lanes[work].on_admitted(work)
        chosen = self._schedule.next_step(_is_runnable)
        decode = [(work, _sequence_length(work)) for work in chosen.decode]
        quiet = not (self._coming or self._schedule.waiting or chosen.prefill or chosen.media or self._has_joining)
        turns = [
            *self._make_turns(
                decode, max(1, min(MAX_TURN_STEPS, *map(_quiet_steps, chosen.decode))) if quiet and decode else 1
            ),
            *self._make_turns(chosen.prefill),
            *self._make_turns([(work, work.tokens) for work in chosen.media]),
        ]
        if len(turns) == 1:
            return turns[0]
        return CombinedTurn(turns, [sum(turn.seconds for turn in turns)]) if turns else None

    @property
    def _has_joining(self) -> bool:
        return any(lane.joining for lane in self.lanes)

    def _enter_ready(self, at: float) -> None:
        while self._coming and self._coming[0][1].ready <= at:
            lane, work = self._coming.popleft()
            if not work.gone:
                self._lanes[work] = lane
                lane.enter_schedule(work)

    def _make_turns(self, works: list[tuple[SimWork, int]], steps: int = 0) -> list[DeviceTurn]:
        """Return the turns of ``works`` by lane; media leave their queue."""
        found = []
        for lane, group in groupby(works, key=lambda each: self._lanes[each[0]]):
            mine = list(group)
            if lane.reads:
                for work, _ in mine:
                    lane.waiting.remove(work)
            found.append(lane.make_turn(mine, self._scale, steps))
        return found

    def finish_turn(self, turn: DeviceTurn | CombinedTurn, at: float, steps: int) -> None:
        super().finish_turn(turn, at, steps)
        for work, _ in turn.works:
            if work.gone:
                self._lanes.pop(work, None)


def _is_runnable(work: SimWork) -> bool:
    return isinstance(work, SimSequence) and work.done < work.allowed


def _sequence_length(work: SimWork) -> int:
    return work.tokens + (work.done if isinstance(work, SimSequence) else 0)


def _quiet_steps(work: SimWork) -> int:
    return int(min(work.quiet_steps, MAX_TURN_STEPS)) if isinstance(work, SimSequence) else 1
