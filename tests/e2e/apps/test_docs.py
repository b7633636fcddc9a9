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


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOC, re.DOTALL | re.MULTILINE)


def runs() -> list[str]:
    """Three ways to write ``run``, each in its own class."""
    block = next(block for block in blocks("python") if "async def run" in block)
    imports, *classes = re.split(r"\n\n(?=class )", block)
    return [f"{imports}\n\n{part.rstrip()}\n" for part in classes]


def checked(directory: Path, text: str) -> str:
    """Check ``text`` with ``omnibus app check``, which must accept it; return the output."""
    (directory / "shown.py").write_text(text)
    done = subprocess.run(
        warm.omnibus_command("app", "check", "shown.py"),
        cwd=directory,
        env={"PYTHONPATH": str(ROOT / "shared"), "PATH": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("index", range(3))
def test_each_way_to_write_a_unit_task_makes_an_app(tmp_path: Path, index: int):
    draw = next(block for block in blocks("python") if "class Draw(" in block)
    assert len(runs()) == 3

    name = ("Paint", "Etch", "Carve")[index]

    said = checked(tmp_path, f"{HEAD}{draw}\n{runs()[index]}\nTASK = {name}()\n{SERVE}")

    assert re.search(rf"^tasks +{name.lower()} \(own\)$", said, re.MULTILINE)


def test_the_composite_task_makes_an_app(tmp_path: Path):
    caption = next(block for block in blocks("python") if "class Caption(" in block)
    made = 'CAPTION = Caption(model=MLLM(encoders={}, thinker=Think(model="m", component="thinker")))\n'

    said = checked(tmp_path, f"{HEAD}{caption}\n{made}{SERVE}")

    assert "think-m-thinker" in said


@pytest.mark.parametrize(("index", "streams"), [(0, False), (1, True)])
def test_each_way_to_write_serve_makes_an_app(tmp_path: Path, index: int, streams: bool):
    caption = next(block for block in blocks("python") if "class Caption(" in block)
    question = next(block for block in blocks("python") if "class Question(" in block)
    serves = [block for block in blocks("python") if "def serve(request: Question)" in block]
    assert len(serves) == 2

    said = checked(tmp_path, f"{HEAD}{caption}{question}{serves[index]}")

    assert re.search(r"^request +\{text: string\}$", said, re.MULTILINE)
    assert ("part by part" in said) == streams


def test_what_may_be_called_in_invoke_exists():
    named = re.findall(r"^\| `(?:with |await )?(\w+)\(", DOC, re.MULTILINE)

    assert {"choose", "pinned", "tool"} <= set(named)
    assert [name for name in named if not hasattr(task, name)] == []


def test_every_mistake_has_the_error_that_is_shown():
    shown = set(re.findall(r"\| `(\w+)` \|$", DOC, re.MULTILINE))

    assert len(shown) == 5
    assert shown <= {kind.code for kind in vars(errors).values() if hasattr(kind, "code")}


def test_every_command_exists():
    used = set(re.findall(r"^omnibus app (\w+)", "\n".join(blocks("sh")), re.MULTILINE)) | {
        "list",
        "show",
        "invoke",
        "unregister",
    }

    for command in sorted(used):
        argv = warm.omnibus_command("app", command, "--help")
        done = subprocess.run(argv, env={"PYTHONPATH": str(ROOT / "shared")}, capture_output=True, check=False)
        assert done.returncode == 0, command
    assert {"check", "run", "register", "update"} <= used
