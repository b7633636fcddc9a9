"""Command-line mistakes get a short, immediate answer with cause and remedy.

They leave nothing on the machine.
"""

from pathlib import Path

import pytest

from tests.e2e import warm
from tests.mistakes import ALONE, Mistake
from tests.mistakes.run import run_mistake

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("mistake", ALONE, ids=lambda each: each.what)
def test_a_mistake_is_answered_as_the_documentation_has_it(mistake: Mistake, tmp_path: Path) -> None:
    assert not run_mistake(mistake, tmp_path, omnibus=warm.omnibus_command()).problems
