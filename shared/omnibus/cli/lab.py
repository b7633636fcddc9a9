"""``omnibus lab``: the experiments of the papers in virtual time, run by the planner in a separate process."""

import argparse
from typing import Any

from omnibus.cli.output import add_output_options
from omnibus.cli.plan import run_planner

_MODULE = "omnibus_planner.lab"


def add_lab_command(commands: Any) -> None:
    """Add ``lab`` to the commands of ``omnibus``."""
    command = commands.add_parser("lab", help="repeat the experiments of the papers, in virtual time")
    command.add_argument("names", nargs="*", metavar="NAME", help="experiments to run (default: list them)")
    add_output_options(command, json="print JSON, a line for each experiment")
    command.add_argument("--jobs", type=int, default=2, metavar="N", help="experiments at a time (default 2)")


async def run_lab(options: argparse.Namespace) -> int:
    """Run experiments and return the exit code."""
    as_json = ["--json"] if options.json else []
    return await run_planner(_MODULE, "--jobs", str(options.jobs), *as_json, "--", *options.names)
