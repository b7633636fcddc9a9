"""A device whose turns are steps of the real schedule: everybody who decodes, shares of prompts, media.

What goes into a step is what ``omnibus.executor.scheduler`` puts there within the budgets that goals allow, as in
executors that compute. Its parts run one after the other, and are all told at the end. On a plain ``Device``
whoever came first goes first, and a long prompt stops the tokens of everybody else.
"""

from collections import deque
from itertools import groupby
from math import inf
from typing import Any

from omnibus.executor.scheduler import Budget, Schedule
from omnibus.executor.sim.device import MANY, Device, Lane, Sequence, Together, Turn, Work
from omnibus.executor.sim.distributions import Curve
from omnibus.executor.step_budget import Goals, Sizes, found

#: Prompt tokens in a step, at least and at most; positions of a sequence whose step is measured; the size of a
#: prompt that waits for all of the patience.
_LEAST, _MOST, _TYPICAL, _WHOLE = 16, 16384, 1024, 4096


class StagedLane(Lane):
    """One component's works. Where it ``reads``, its passes are batches of media, and else prompts.

    ``usual`` is the number of tokens of an item that budgets are found for.
    """

    def __init__(self, curves: tuple[Curve | None, Curve | None], slots: int, share: int, reads: bool, usual: int):
        super().__init__(*curves, slots, share)
        self.reads = reads
        self.usual = usual
        self.coming: deque[tuple[StagedLane, Work]]
        self.schedule: Schedule[Any]

    def put(self, work: Work, at: float) -> None:
        work.ready = at
        self.waiting.append(work)
        self.coming.append((self, work))

    def enter(self, work: Work) -> None:
        """Take part from now on; it came when it became ready."""
        if self.reads:
            self.schedule.item(work, max(1, work.tokens), work.ready, self)
        elif self.batch is not None:
            self.schedule.prompt(work, max(1, work.tokens), work.ready)
        else:
            self.schedule.arrive(work, work.ready)

    def remove(self, work: Work, at: float) -> None:
        if not work.gone:
            super().remove(work, at)
            self.schedule.leave(work)

    def _admit(self, at: float) -> None:
        """The schedule does that."""

    def admitted(self, work: Work) -> None:
        """``work`` has a slot."""
        self.waiting.remove(work)
        if self.batch is not None:
            self.joining.append(work)
        elif isinstance(work, Sequence):
            self.active.append(work)
            self.schedule.decode(work)

    def _advance(self, work: Work, at: float, steps: int) -> None:
        if not isinstance(work, Sequence):
            self.remove(work, at)
        elif work in self.joining:
            self.joining.remove(work)
            self.active.append(work)
            self.schedule.decode(work)
        super()._advance(work, at, steps)


class Staged(Device):
    """``goals`` are those of the steps; lanes are encoders, and one language model or its halves."""

    def __init__(self, scale: float, goals: Goals) -> None:
        super().__init__(scale)
        self._goals = goals
        self._lanes: dict[Work, StagedLane] = {}
        self._coming: deque[tuple[StagedLane, Work]] = deque()
        self._schedule: Schedule[Work] = Schedule(0, Budget(0, 0), patience=goals.first, whole=_WHOLE)

    def lane(
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
        self._budget()
        return lane

    def _budget(self) -> None:
        """Find what fits into a step: once more with every lane."""
        lanes = [lane for lane in self.lanes if isinstance(lane, StagedLane)]
        self._schedule.slots = max((lane.slots for lane in lanes if not lane.reads), default=0)
        steps = [(lane.step, lane.slots) for lane in lanes if lane.step is not None]
        decode = max((step.seconds(slots, slots * _TYPICAL) * self._scale for step, slots in steps), default=0.0)
        for lane in lanes:
            curve = lane.batch
            if curve is None:
                continue
            if lane.reads:
                beside, alone = self._found(curve, decode, Sizes(1, lane.slots, lane.slots), lane.usual)
                self._schedule.kinds[lane] = Budget(beside * lane.usual, alone * lane.usual, lane.slots)
            else:
                usual = _MOST if lane.share == inf else int(lane.share)
                self._schedule.budget = Budget(*self._found(curve, decode, Sizes(_LEAST, _MOST, usual)))

    def _found(self, curve: Curve, decode: float, sizes: Sizes, each: int = 0) -> tuple[int, int]:
        def cost(size: int) -> float:
            return curve.seconds(size if each else 1, size * max(1, each)) * self._scale

        return found(cost, self._goals, decode, sizes)

    def turn(self, at: float) -> Turn | Together | None:
        self._enter(at)
        for work in self._schedule.admit():
            self._lanes[work].admitted(work)
        chosen = self._schedule.turn(_able)
        decode = [(work, _far(work)) for work in chosen.decode]
        quiet = not (self._coming or self._schedule.waiting or chosen.prefill or chosen.media or self._joining)
        turns = [
            *self._turns(decode, max(1, min(MANY, *map(_quiet, chosen.decode))) if quiet and decode else 1),
            *self._turns(chosen.prefill),
            *self._turns([(work, work.tokens) for work in chosen.media]),
        ]
        if len(turns) == 1:
            return turns[0]
        return Together(turns, [sum(turn.seconds for turn in turns)]) if turns else None

    @property
    def _joining(self) -> bool:
        return any(lane.joining for lane in self.lanes)

    def _enter(self, at: float) -> None:
        while self._coming and self._coming[0][1].ready <= at:
            lane, work = self._coming.popleft()
            if not work.gone:
                self._lanes[work] = lane
                lane.enter(work)

    def _turns(self, works: list[tuple[Work, int]], steps: int = 0) -> list[Turn]:
        """``works`` lane by lane; those of media leave the queue."""
        found = []
        for lane, group in groupby(works, key=lambda each: self._lanes[each[0]]):
            mine = list(group)
            if lane.reads:
                for work, _ in mine:
                    lane.waiting.remove(work)
            found.append(lane.turn(mine, self._scale, steps))
        return found

    def finish(self, turn: Turn | Together, at: float, steps: int) -> None:
        super().finish(turn, at, steps)
        for work, _ in turn.works:
            if work.gone:
                self._lanes.pop(work, None)


def _able(work: Work) -> bool:
    return isinstance(work, Sequence) and work.done < work.allowed


def _far(work: Work) -> int:
    return work.tokens + (work.done if isinstance(work, Sequence) else 0)


def _quiet(work: Work) -> int:
    return int(min(work.quiet, MANY)) if isinstance(work, Sequence) else 1
