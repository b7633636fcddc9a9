"""Command-line mistakes while a system runs."""

from pathlib import Path

import pytest

from tests.e2e import warm
from tests.e2e.system import System
from tests.mistakes import RUNNING, Mistake
from tests.mistakes.run import run_mistake

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("mistake", RUNNING, ids=lambda each: each.what)
def test_a_mistake_is_answered_as_the_documentation_has_it(
    traced_system: System, mistake: Mistake, tmp_path: Path
) -> None:
    beside = {"XDG_RUNTIME_DIR": traced_system.env["XDG_RUNTIME_DIR"]}
    assert not run_mistake(mistake, tmp_path, beside, warm.omnibus_command()).problems
