"""``omnibus whatif``: a plan and its requests in virtual time, run by the planner in a separate process.

The solver is in the planner, not in the SDK.
"""

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec

from omnibus.cli.output import add_output_options
from omnibus.errors import BadRequest, StageUnavailable
from omnibus.process.spec import SHARED, has_package, python_command, python_path
from omnibus.up import runs

_MODULE = "omnibus_planner.whatif"
#: Options that name files, possibly relative to the working directory of the command.
_FILES = ("models", "trace", "workload", "engine_profile")


def add_whatif_command(commands: Any) -> None:
    """Add ``whatif`` to the commands of ``omnibus``."""
    whatif = commands.add_parser("whatif", help="simulate a plan under other requests, or on other GPUs")
    add = whatif.add_argument
    add("--plan", default="", metavar="current|FILE", help="the plan that runs, or one of `omnibus plan show --json`")
    add("--models", default="", metavar="FILE", help="declarations: they are planned, unless --plan names a plan")
    add("--gpus", default="", metavar="COUNTS", help="make a new plan for these GPUs, such as '8 H100, 4 L40S'")
    add("--trace", default="", metavar="CSV", help="requests by their times (t_s) and sizes")
    add("--workload", default="", metavar="FILE", help="requests by their shares, as `omnibus profile` takes them")
    add("--from", dest="since", default="", metavar="DURATION", help="recorded requests of the last 10m, 2h ...")
    add("--rate", default="", metavar="2x|REQ/S", help="a factor of the arrival rate, or requests per second")
    add("--model", default="", metavar="NAME", help="the model that a file's requests are for, if there are several")
    add("--seconds", type=float, default=0.0, help="how long to simulate (default: the trace's length, or 600)")
    add("--seed", type=int, default=1, help="of arrivals and sizes (default 1)")
    add("--engine-profile", default="", metavar="FILE", help="the times that simulated engines follow")
    add("--store", default="", metavar="URL", help="the store; without it the running `omnibus up` is found")
    add("--nats", default="", metavar="URL", help="the bus; without it the running `omnibus up` is found")
    add_output_options(whatif)


async def run_whatif(options: argparse.Namespace) -> int:
    """Run the simulation and return the exit code."""
    for name in _FILES:
        path = getattr(options, name)
        if path and not os.access(path, os.R_OK):
            raise BadRequest(f"--{name.replace('_', '-')} {path}: cannot read this file")
    question = {name: value for name, value in vars(options).items() if name not in ("command", "store", "nats")} | {
        name: _absolute_path(getattr(options, name)) for name in _FILES
    }
    question["plan"] = options.plan if options.plan == "current" else _absolute_path(options.plan)
    process = await asyncio.create_subprocess_exec(
        *python_command(_MODULE, msgspec.json.encode(question).decode()),
        cwd=SHARED,
        env={**_planner_environment(), **_addresses(options)},
    )
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _planner_environment() -> dict[str, str]:
    """Return the environment of a process of the planner. Raises ``BadRequest`` if the planner is not installed next to
    this SDK."""
    if not has_package("omnibus_planner"):
        raise BadRequest("the planner is not installed: run `pip install 'omnibus-serve[all,local]'`")
    return {**os.environ, "PYTHONPATH": python_path()}


def _absolute_path(path: str) -> str:
    return str(Path(path).absolute()) if path else ""


def _addresses(options: argparse.Namespace) -> dict[str, str]:
    """Return the addresses of the store and the bus: the named ones, the environment's, or those of the running
    ``omnibus up``."""
    variables = {"OMNIBUS_STORE_URL": options.store, "OMNIBUS_BUS_URL": options.nats}
    try:
        state = runs.read_state()
        running = {"OMNIBUS_STORE_URL": state.store_url, "OMNIBUS_BUS_URL": state.nats_url}
    except StageUnavailable:
        running = {}
    except BadRequest:  # several run, which matters only to a question about one of them
        if options.plan == "current" or options.since or not (options.plan or options.models):
            raise
        running = {}
    return {
        name: value or running[name]
        for name, value in variables.items()
        if value or (name not in os.environ and name in running)
    }
