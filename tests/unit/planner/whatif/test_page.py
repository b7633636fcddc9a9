"""Commands of ``omnibus whatif`` on docs/planner.md work as documented."""

import json
import re
import shlex
from pathlib import Path

import pytest

from omnibus.cli.main import main

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs/planner.md").read_text().split("\n## What if\n")[1].split("\n## ")[0]
COMMANDS = [
    line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines() if line.strip()
]
SHOWN = re.findall(r"```\n\n```\n(.*?)```", PAGE, re.DOTALL)[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_answers(
    command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(ROOT)
    program, *arguments = shlex.split(command)

    assert program == "omnibus"
    assert main(arguments) == 0

    output = capfd.readouterr().out
    if "--json" in arguments:
        assert json.loads(output)["types"]
    else:
        assert read_headings(output) == read_headings(SHOWN)


def read_headings(text: str) -> list[list[str]]:
    """Return the words of the header lines of tables."""
    return [line.split() for line in text.splitlines() if line.startswith(("MODEL", "OPTION"))]
