"""The gate stops seeded regressions, and a bisection names them.

Harmless changes pass.
"""

from pathlib import Path

import pytest

from tests.bench.regressions.cases import HARMLESS, REGRESSIONS
from tests.bench.regressions.report import count_outcomes, try_cases
from tests.e2e.system import System

pytestmark = [pytest.mark.e2e, pytest.mark.one_node]

FEW = ("vision: two blocks are swapped", "thinker: a copy")
#: Comparisons of a harmless change.
FEW_PAIRS = 8


async def test_a_regression_is_caught_and_a_copy_is_not_stopped(
    canary_system: System, vl_checkpoint: Path, tmp_path: Path
):
    cases = [each for each in (*REGRESSIONS, *HARMLESS) if each.name in FEW]

    outcomes = await try_cases(cases, canary_system, vl_checkpoint, tmp_path, FEW_PAIRS)

    assert [each.state for each in outcomes] == ["failed", "shadow"]
    assert [each.is_named for each in outcomes] == [True, False]
    assert outcomes[-1].pairs >= FEW_PAIRS


@pytest.mark.nightly
@pytest.mark.timeout(1800)
async def test_of_all_regressions_one_is_missed_at_most_at_one_false_alarm(
    canary_system: System, vl_checkpoint: Path, tmp_path: Path
):
    outcomes = await try_cases([*REGRESSIONS, *HARMLESS], canary_system, vl_checkpoint, tmp_path)

    counts = count_outcomes(outcomes)
    assert counts["caught"] >= counts["regressions"] - 1, outcomes
    assert counts["named"] >= counts["regressions"] - 1, outcomes
    assert counts["false_alarms"] <= 1, outcomes
