"""A separate process returns one answer or problem, or is stopped."""

import asyncio
from pathlib import Path

import psutil
import pytest

from omnibus.errors import DeadlineExceeded, Fatal, NotFound
from omnibus.process import run_module

ANSWERS = """
import os, sys
from omnibus.process import run_module
print("loading ...")
sys.exit(run_module.report_answer(lambda: {"words": sys.argv[1:], "variable": os.environ.get("SPOKEN")}))
"""
REFUSES = """
import sys
from omnibus import errors
from omnibus.process import run_module
def work():
    raise errors.NotFound("it is not there", param="it")
sys.exit(run_module.report_answer(work))
"""
BREAKS = "raise SystemExit('out of paper')"
SPEAKS = "print('1')"
WAITS = """
import pathlib, sys, threading
pathlib.Path(sys.argv[1]).write_text(str(__import__('os').getpid()))
threading.Event().wait()
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A module path with these tests' modules and the SDK."""
    for name, text in {
        "answers": ANSWERS,
        "refuses": REFUSES,
        "breaks": BREAKS,
        "speaks": SPEAKS,
        "waits": WAITS,
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    return {"PYTHONPATH": f"{Path(run_module.__file__).parents[1]}:{tmp_path}", "SPOKEN": "aloud"}


async def test_an_answer_is_data_whatever_else_is_printed(env: dict[str, str]):
    answer = await run_module.call_module("answers", "one", "two words", within=30, env=env)

    assert answer == {"words": ["one", "two words"], "variable": "aloud"}


async def test_a_problem_is_raised_as_what_it_is(env: dict[str, str]):
    with pytest.raises(NotFound, match="it is not there") as caught:
        await run_module.call_module("refuses", within=30, env=env)

    assert caught.value.param == "it"


@pytest.mark.parametrize(
    ("module", "reason"), [("breaks", "out of paper"), ("none", "No module named none"), ("speaks", "")]
)
async def test_an_end_without_an_answer_tells_what_was_said(module: str, reason: str, env: dict[str, str]):
    with pytest.raises(Fatal, match=f"(?s){module} ended without an answer:.*{reason}"):
        await run_module.call_module(module, within=30, env=env)


async def test_how_a_process_ended_is_told(env: dict[str, str]):
    spoke, broke = [await run_module.run_module(module, within=30, env=env) for module in ("speaks", "breaks")]

    assert spoke == (0, "1\n", "")
    assert broke == (1, "", "out of paper\n")


async def test_who_takes_too_long_is_ended(env: dict[str, str], tmp_path: Path):
    with pytest.raises(DeadlineExceeded, match=r"waits .* took more than 2 s"):
        await run_module.call_module("waits", str(tmp_path / "pid"), within=2, env=env)

    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


async def test_nobody_waits_for_an_answer_that_is_not_wanted_any_more(env: dict[str, str], tmp_path: Path):
    call = asyncio.create_task(run_module.call_module("waits", str(tmp_path / "pid"), within=30, env=env))
    async with asyncio.timeout(30):
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            await asyncio.sleep(0.01)
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call

    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
