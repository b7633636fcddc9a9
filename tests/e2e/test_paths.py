"""Paths of a newcomer: every command is in the documentation, and leads to what it says there."""

from collections.abc import Callable

import pytest

from tests.e2e.system import ROOT
from tests.paths.run import WrongOutputError, walk
from tests.paths.table import PATHS, Command, Path

COMMANDS = [(path.name, command) for path in PATHS for command in (path.system, *path.commands) if command is not None]


@pytest.mark.parametrize(
    ("name", "command"), COMMANDS, ids=[f"{name}-{number}" for number, (name, _) in enumerate(COMMANDS)]
)
def test_every_command_stands_in_the_page_that_it_is_from(name: str, command: Command):
    assert command.text.replace(".venv/bin/", "") in (ROOT / command.page).read_text().replace(".venv/bin/", "")


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_a_newcomer_gets_an_answer_an_app_and_a_replay(
    record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
):
    """The other two paths, ``app run`` and ``plan show``, are commands that ``test_readme.py`` runs."""
    names = ["answer", "app", "replay"]

    walked = list(walk(path for path in PATHS if path.name in names))

    assert [each.path.name for each in walked] == names
    for each in walked:
        took = ", ".join(f"{seconds:.1f}" for seconds in (each.start_seconds, *each.seconds))
        record_property(f"seconds to {each.path.goal}", took)
        with capsys.disabled():
            print(f"\n  to {each.path.goal}: {each.total_seconds:.1f} s ({took})", end="")


def test_a_command_that_prints_something_else_ends_the_walk():
    wrong = Path("wrong", "nothing", None, (Command("echo no", "yes", ""),))

    with pytest.raises(WrongOutputError, match="echo no"):
        list(walk([wrong]))
