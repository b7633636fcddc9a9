"""``omnibus plan solve``: runs the planner's solver on the cases in a file, in a separate process.

The solver is in the planner, not in the SDK. Its process prints one JSON object on stdout and nothing else.
"""

import argparse
import asyncio
import os
from pathlib import Path

from omnibus.errors import BadRequest
from omnibus.process.spec import SHARED, has_package, python_command, python_path

_MODULE = "omnibus_planner.cli"


async def solve_plan(options: argparse.Namespace) -> int:
    """Run the solver on ``options.file`` and return its exit code."""
    return await run_planner(_MODULE, "solve", _absolute_path(options.file), "--within", str(options.within))


async def run_planner(module: str, *arguments: str) -> int:
    """Run a module of the planner and return its exit code. It writes to this process's output."""
    process = await asyncio.create_subprocess_exec(
        *python_command(module, *arguments), cwd=SHARED, env=planner_environment()
    )
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def planner_environment() -> dict[str, str]:
    """Return the environment of a process of the planner. Raises ``BadRequest`` if the planner is not installed next to
    this SDK."""
    if not has_package("omnibus_planner"):
        raise BadRequest("the planner is not installed: run `pip install 'omnibus-serve[all,local]'`")
    return {**os.environ, "PYTHONPATH": python_path()}


def _absolute_path(path: str) -> str:
    return str(Path(path).absolute())
