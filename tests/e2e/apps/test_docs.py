"""The code in docs/apps.md works as shown."""

import re
import subprocess
from pathlib import Path

import pytest

from omnibus import errors, task
from tests.e2e import warm
from tests.e2e.system import ROOT

pytestmark = pytest.mark.e2e

DOC = (ROOT / "docs" / "apps.md").read_text()
HEAD = """
from collections.abc import AsyncIterator
from pydantic import BaseModel
from omnibus.task import *

class Question(BaseModel):
    text: str

class Answer(BaseModel):
    text: str
"""
SERVE = "async def serve(request: Question) -> Answer: ...\n"


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOC, re.DOTALL | re.MULTILINE)


def run_classes() -> list[str]:
    """Three ways to write ``run``, each in its own class."""
    block = next(block for block in code_blocks("python") if "async def run" in block)
    imports, *classes = re.split(r"\n\n(?=class )", block)
    return [f"{imports}\n\n{part.rstrip()}\n" for part in classes]


def check_app(directory: Path, text: str) -> str:
    """Check ``text`` with ``omnibus app check``, which must accept it; return the output."""
    (directory / "shown.py").write_text(text)
    process = subprocess.run(
        warm.omnibus_command("app", "check", "shown.py"),
        cwd=directory,
        env={"PYTHONPATH": str(ROOT / "shared"), "PATH": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stdout
    return process.stdout


@pytest.mark.parametrize("index", range(3))
def test_each_way_to_write_a_unit_task_makes_an_app(tmp_path: Path, index: int):
    draw = next(block for block in code_blocks("python") if "class Draw(" in block)
    assert len(run_classes()) == 3

    name = ("Paint", "Etch", "Carve")[index]

    output = check_app(tmp_path, f"{HEAD}{draw}\n{run_classes()[index]}\nTASK = {name}()\n{SERVE}")

    assert re.search(rf"^tasks +{name.lower()} \(own\)$", output, re.MULTILINE)


def test_the_composite_task_makes_an_app(tmp_path: Path):
    caption = next(block for block in code_blocks("python") if "class Caption(" in block)
    code = 'CAPTION = Caption(model=MLLM(encoders={}, thinker=Think(model="m", component="thinker")))\n'

    output = check_app(tmp_path, f"{HEAD}{caption}\n{code}{SERVE}")

    assert "think-m-thinker" in output


@pytest.mark.parametrize(("index", "streams"), [(0, False), (1, True)])
def test_each_way_to_write_serve_makes_an_app(tmp_path: Path, index: int, streams: bool):
    caption = next(block for block in code_blocks("python") if "class Caption(" in block)
    question = next(block for block in code_blocks("python") if "class Question(" in block)
    serves = [block for block in code_blocks("python") if "def serve(request: Question)" in block]
    assert len(serves) == 2

    output = check_app(tmp_path, f"{HEAD}{caption}{question}{serves[index]}")

    assert re.search(r"^request +\{text: string\}$", output, re.MULTILINE)
    assert ("part by part" in output) == streams


def test_what_may_be_called_in_invoke_exists():
    calls = re.findall(r"^\| `(?:with |await )?(\w+)\(", DOC, re.MULTILINE)

    assert {"choose", "pinned", "tool"} <= set(calls)
    assert [name for name in calls if not hasattr(task, name)] == []


def test_every_mistake_has_the_error_that_is_shown():
    codes = set(re.findall(r"\| `(\w+)` \|$", DOC, re.MULTILINE))

    assert len(codes) == 5
    assert codes <= {kind.code for kind in vars(errors).values() if hasattr(kind, "code")}


def test_every_command_exists():
    commands = set(re.findall(r"^omnibus app (\w+)", "\n".join(code_blocks("sh")), re.MULTILINE)) | {
        "list",
        "show",
        "invoke",
        "unregister",
    }

    for command in sorted(commands):
        argv = warm.omnibus_command("app", command, "--help")
        process = subprocess.run(argv, env={"PYTHONPATH": str(ROOT / "shared")}, capture_output=True, check=False)
        assert process.returncode == 0, command
    assert {"check", "run", "register", "update"} <= commands
