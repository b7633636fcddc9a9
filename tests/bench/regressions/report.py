"""Run cases one after another on a system, and report their outcomes."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.regressions.cases import RegressionCase
from tests.bench.regressions.trial import MAX_PAIRS, CandidateOutcome, start_trials
from tests.e2e.system import System


async def try_cases(
    cases: Sequence[RegressionCase], system: System, checkpoint: Path, directory: Path, pairs: int = MAX_PAIRS
) -> list[CandidateOutcome]:
    """Try each of ``cases``, with at most ``pairs`` comparisons in the shadow; print a line each."""
    outcomes = list[CandidateOutcome]()
    async with start_trials(system, checkpoint, directory, pairs) as run:
        for case in cases:
            began = time.monotonic()
            outcomes.append(await run(case))
            print(describe_outcome(outcomes[-1], time.monotonic() - began), file=sys.stderr, flush=True)
    return outcomes


def describe_outcome(outcome: CandidateOutcome, seconds: float) -> str:
    """A line of the table."""
    case = outcome.case
    good = outcome.is_caught == bool(case.stage)
    naming = "" if not case.stage else "  named" if outcome.is_named else f"  NAMED {outcome.bisected} {outcome.stages}"
    return (
        f"{'right' if good else 'WRONG'}  {case.name:48} {outcome.state:8} {outcome.pairs:3} pairs {seconds:5.1f} s"
        f"{naming}  {outcome.reason}"
    )


def count_outcomes(outcomes: Sequence[CandidateOutcome]) -> dict[str, int]:
    """Count caught regressions, stopped harmless changes, and named stages."""
    bad = [each for each in outcomes if each.case.stage]
    harmless = [each for each in outcomes if not each.case.stage]
    return {
        "regressions": len(bad),
        "caught": sum(each.is_caught for each in bad),
        "named": sum(each.is_named for each in bad),
        "harmless": len(harmless),
        "false_alarms": sum(each.is_caught for each in harmless),
    }
