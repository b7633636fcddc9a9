"""First paths of a newcomer: documented commands have the documented results."""

from collections.abc import Callable

import pytest

from tests.e2e.system import ROOT
from tests.measured import REPORTED
from tests.paths.run import WrongOutputError, walk_paths
from tests.paths.table import PATHS, Command, Path

COMMANDS = [
    (path.name, command)
    for path in PATHS
    for command in (path.system, *path.commands, *path.beyond)
    if command is not None
]


@pytest.mark.parametrize(
    ("name", "command"), COMMANDS, ids=[f"{name}-{number}" for number, (name, _) in enumerate(COMMANDS)]
)
def test_every_command_stands_in_the_page_that_it_is_from(name: str, command: Command):
    assert command.text.replace(".venv/bin/", "") in (ROOT / command.page).read_text().replace(".venv/bin/", "")


@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_a_newcomer_gets_an_answer_an_app_a_graph_a_replay_and_a_plan(
    record_property: Callable[[str, object], None],
):
    """The test report prints these measurements."""
    names = []
    for each in walk_paths(PATHS):
        names.append(each.path.name)
        took = " + ".join(f"{seconds:.1f}" for seconds in (each.start_seconds, *each.seconds) if seconds)
        record_property(f"{REPORTED}seconds to {each.path.goal}", f"{each.total_seconds:.1f} ({took})")

    assert sorted(names) == sorted(path.name for path in PATHS)


def test_a_command_that_prints_something_else_ends_the_walk():
    wrong = Path("wrong", "nothing", None, (Command("echo no", "yes", ""),))

    with pytest.raises(WrongOutputError, match="echo no"):
        list(walk_paths([wrong]))
