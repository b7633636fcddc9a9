"""Follows candidates and their comparisons, and advances or reverts them.

A candidate goes from the shadow to users. All state is in the store, so a new planner continues where another one
ended. Of several planners the first one that reads a verdict acts on it. The plan determines executors: a candidate is
a part of the target (``omnibus.canary.candidate``), reached by the usual rollout.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from omnibus.canary.candidate import Candidate, Judgement, judge_canary, judge_shadow, overlay_models, without_candidate
from omnibus.errors import Conflict, StoreUnavailable
from omnibus.metrics import PLANNER
from omnibus.plan import ModelPlan
from omnibus.store import Store
from omnibus_planner.optimize.result import PlanningResult
from omnibus_planner.rollout.transition_plan import Models

log = logging.getLogger(__name__)

#: Seconds between two checks of comparisons.
LOOK_SECONDS = 1.0


class CandidateController:
    """The candidates of the store; ``on_change`` is called with a reason when models must change."""

    def __init__(self, store: Store, on_change: Callable[[str], None]) -> None:
        self._store = store
        self._on_change = on_change
        self._candidates: dict[str, Candidate] = {}
        self._woken = asyncio.Event()
        PLANNER.candidates.set_values(self._count_states)

    def _count_states(self) -> dict[tuple[str, ...], float]:
        return {(name, each.state): 1.0 for name, each in self._candidates.items()}

    async def load(self) -> None:
        """Read the candidates. Raises ``StoreUnavailable``."""
        self._candidates = await self._store.candidates()

    def apply(self, models: Models) -> dict[str, ModelPlan]:
        """Return ``models`` with the candidates, and with promoted versions."""
        return overlay_models(models, self._candidates.values())

    def wrap_route(self, route: Callable[[Models], PlanningResult] | None) -> Callable[[Models], PlanningResult] | None:
        """Wrap ``route`` to hide candidates from it."""
        if route is None:
            return None
        return lambda models: route({name: without_candidate(model) for name, model in models.items()})

    async def follow(self) -> None:
        """Follow the store until cancelled."""
        async for candidates in self._store.candidate_changes():
            before, self._candidates = self._candidates, candidates
            changed_candidates = [
                each for name, each in candidates.items() if _effect(before.get(name)) != _effect(each)
            ]
            if changed_candidates:
                self._on_change("; ".join(_describe_change(each) for each in changed_candidates))
            self._woken.set()

    async def judge_candidate(self) -> None:
        """Judge active candidates repeatedly, until cancelled."""
        while True:
            active = [each for each in self._candidates.values() if each.is_active]
            if not active:
                self._woken.clear()
                await self._woken.wait()
                continue
            for candidate in active:
                try:
                    await self._judge_candidate(candidate)
                except Conflict:  # another planner, or an operator, was faster
                    log.info("another planner or an operator changed the candidate for %s first", candidate.model)
                except StoreUnavailable as error:
                    log.warning("%s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def _judge_candidate(self, candidate: Candidate) -> None:
        counts = await self._store.counts(candidate.id)
        after = next_state(candidate, counts, time.time())
        if after is not None:
            await self._store.put_candidate(after, candidate)
            log.info("the candidate for %s is %s: %s", after.model, after.state, after.reason)


def next_state(candidate: Candidate, counts: Mapping[str, int], now: float) -> Candidate | None:
    """Return ``candidate`` in its next state, by ``counts``; None if it does not change."""
    in_canary = candidate.state == "canary"
    judgement = (judge_canary if in_canary else judge_shadow)(candidate.rules, counts)
    if judgement.verdict == "red":
        return candidate.enter_state("failed", judgement.reason, now)
    if judgement.verdict == "green":
        if not in_canary and candidate.share > 0:
            return candidate.enter_state("canary", judgement.reason, now)
        if candidate.promote:
            return candidate.enter_state("promoted", judgement.reason, now)
        return _with_note(candidate, judgement)
    if now - candidate.since > candidate.within:
        return candidate.enter_state("expired", f"no verdict within {candidate.within:g} s: {judgement.reason}", now)
    return None


def _with_note(candidate: Candidate, judgement: Judgement) -> Candidate | None:
    """Add a note that the gate is green, and wait for promotion.

    An operator promotes the candidate. The candidate stays in its state, whose time starts with the verdict.
    """
    note = "the gate is green: `omnibus canary promote` takes it"
    return candidate.enter_state(candidate.state, note, candidate.since) if candidate.reason != note else None


def _effect(candidate: Candidate | None) -> object:
    """Return all fields of a candidate that plans depend on."""
    if candidate is None:
        return None
    beside = (candidate.id, candidate.state) if candidate.is_active or candidate.state == "promoted" else None
    return (beside, candidate.base, candidate.base_path)


def _describe_change(candidate: Candidate) -> str:
    why = f" ({candidate.reason})" if candidate.reason else ""
    return f"canary: {candidate.model} {candidate.describe()}: {candidate.state}{why}"
