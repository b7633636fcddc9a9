"""Commands fit the terminal that they run in, and print full lines for programs."""

import subprocess
from itertools import pairwise

import pytest

from omnibus.cli.help_texts import GROUPS
from tests.e2e.terminal.conftest import ShownSystem
from tests.e2e.terminal.screen import run_in_terminal, too_wide

pytestmark = pytest.mark.e2e

PROMPT = "— Enter: next, q: end "
FIRST, SECOND, TEXT = "{0}", "{1}", "{2}"
#: Commands that print facts, with the ids of requests as numbers. A comparison that finds a difference exits with 1.
COMMANDS = [
    f"show {FIRST}",
    f"show {TEXT}",
    f"step {FIRST}",
    f"step {TEXT} --all",
    f"compare {FIRST} {SECOND}",
    f"compare {FIRST} {TEXT}",
    f"replay {FIRST}",
    f"fork {FIRST} thinker messages.0.content=Why?",
    f"bisect {FIRST}",
    "plan show",
    "plan history",
    "plan cells",
    "top --once",
    "nodes",
    "ps",
    "status",
    "tasks",
    "app list",
    "app show an_app_with_a_name_of_some_length",
    "usage",
    "deadletters",
    "models list",
    "models get",
    "models show qwen2_5_omni",
    "keys list",
    "adapters list",
    "canary status",
    "settings gateway",
    "size",
    "size chat-stream=50 chat-image=5 speech=2 image=1 chat-audio=3",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_fits_a_terminal_of_80_columns(shown_system: ShownSystem, command: str):
    system, ids = shown_system

    code, lines = run_in_terminal(system.program(*command.format(*ids).split()), system.env, PROMPT)

    assert code in (0, 1), lines
    assert not any(line.startswith("omnibus: ") for line in lines), lines
    assert any(lines)
    assert too_wide(lines) == []


@pytest.mark.parametrize("command", ["", *(name for names in GROUPS.values() for name in names)])
def test_help_fits_a_terminal_of_80_columns(shown_system: ShownSystem, command: str):
    system = shown_system.system

    code, lines = run_in_terminal(system.program(*command.split(), "--help"), system.env)

    assert code == 0
    assert too_wide(lines) == []


def test_a_program_gets_full_lines(shown_system: ShownSystem):
    system, ids = shown_system

    show = system.program("show", ids[0])
    in_a_pipe = subprocess.run(show, env=system.env, capture_output=True, text=True, check=True, timeout=60).stdout

    assert "█ output        end" in in_a_pipe
    assert run_in_terminal(show, system.env, columns=200)[1] == in_a_pipe.splitlines()


def test_a_fork_that_a_step_offers_runs(shown_system: ShownSystem):
    system, ids = shown_system
    _, lines = run_in_terminal(system.program("step", ids[0], "--all"), system.env)
    values = {"messages": "messages.0.content=Why?", "params": "params.temperature=0.5", "voice": "voice=Ethan"}

    offers = [
        (names.split(" can change ")[1].rstrip(":").split(", "), command.split()[1:-1])
        for names, command in pairwise(lines)
        if "a fork can change" in names
    ]

    assert [command[-1] for _, command in offers] == ["1", "2", "3"], "an encoder reads media alone"
    for names, command in offers:
        for name in names:
            code, lines = run_in_terminal(system.program(*command, values[name]), system.env)
            assert (code, lines[-1].startswith("  omnibus compare")) == (0, True), lines
