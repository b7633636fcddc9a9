"""The promises of docs/reliability.md hold under faults and hostile clients.

The faults include killed and frozen processes, and full disks.
"""

import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.chaos.__main__ import VERBS, parse_arguments
from tests.chaos.faults import WEIGHTS, schedule_faults
from tests.e2e.system import ROOT
from tests.nightly import mark_nightly

SEED = 20
_WITHIN_SECONDS = 540.0


@pytest.mark.e2e
@pytest.mark.chaos
@pytest.mark.timeout(_WITHIN_SECONDS + 30)
@pytest.mark.parametrize(
    "arguments",
    [
        ["--minutes=0.5"],
        *mark_nightly(["--minutes=3"], ["--minutes=1", "--hostile=60"]),
    ],
    ids=["faults", "faults for longer", "hostile inputs"],
)
def test_every_promise_holds(arguments: list[str], tmp_path: Path):
    _run_chaos(f"--seed={SEED}", f"--into={tmp_path}", "--late=8", *arguments)


@pytest.mark.e2e
@pytest.mark.chaos
@pytest.mark.timeout(_WITHIN_SECONDS + 30)
@pytest.mark.parametrize(
    "arguments",
    [["--attacks=background slots,store flood,quota evasion,delete by url"], *mark_nightly([])],
    ids=["what is kept and made", "all attacks"],
)
def test_one_tenant_takes_nothing_from_another(arguments: list[str]):
    _run_chaos("--tenants", "--late=8", *arguments)


def _run_chaos(*arguments: str) -> None:
    command = [sys.executable, "-m", "tests.chaos", *arguments]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_WITHIN_SECONDS, check=False)

    assert process.returncode == 0, f"{' '.join(command)}\n{process.stdout[-12_000:]}\n{process.stderr[-4_000:]}"


def draw_faults(seed: int, count: int, verbs: set[str], roles: set[str]) -> list[tuple[str, str, float, int]]:
    faults = islice(schedule_faults(seed, verbs, roles), count)
    return [(fault.role, fault.verb, fault.seconds, fault.place) for fault in faults]


def test_a_seed_repeats_its_faults_and_begins_with_one_of_each():
    verbs, roles = set(VERBS), {role for role, _ in WEIGHTS}

    one, again, other = (draw_faults(seed, 2 * len(WEIGHTS), verbs, roles) for seed in (7, 7, 8))

    assert one == again != other
    assert {(role, verb) for role, verb, _, _ in one[: len(WEIGHTS)]} == set(WEIGHTS)


def test_only_faults_that_were_named_are_drawn():
    assert {fault[:2] for fault in draw_faults(7, 20, {"kill"}, {"nats", "valkey"})} == {
        ("nats", "kill"),
        ("valkey", "kill"),
    }
    assert draw_faults(7, 20, {"fill"}, {"nats"}) == []


def test_a_fault_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        parse_arguments(["--faults=kill,melt"])

    assert "melt" in capsys.readouterr().err
