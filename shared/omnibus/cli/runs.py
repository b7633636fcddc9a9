"""Arguments of the commands for runs of ``omnibus up`` and for settings."""

import argparse
import os
from collections.abc import Iterator
from typing import Any

from omnibus.cli.output import add_output_options
from omnibus.up.runs import RUN

_FOLLOWS_RUN = frozenset({"--nats", "--store", "--url"})


def add_run_commands(commands: Any) -> None:
    """Add the commands to ``commands`` of ``omnibus``."""
    list_command = commands.add_parser("ps", help="the runs of `omnibus up` on this machine")
    status = commands.add_parser("status", help="show one run: its addresses, processes, models and missing parts")
    down = commands.add_parser("down", help="end a run; its requests finish")
    logs = commands.add_parser("logs", help="print the logs of the processes of a run")
    down.add_argument("--all", action="store_true", help="end all runs")
    logs.add_argument("process", nargs="*", metavar="PROCESS", help="only these, such as gateway (default: all)")
    logs.add_argument("-n", "--lines", type=int, default=100, metavar="N", help="the last N lines (default 100)")
    logs.add_argument("-f", "--follow", action="store_true", help="print new lines until the run ends")
    settings = commands.add_parser("settings", help="all settings, and the values that they have in this shell")
    settings.add_argument("words", nargs="*", metavar="WORD", help="only settings with these words in their names")
    settings.add_argument("--set", action="store_true", help="only those that are set in this shell")
    add_output_options(list_command, names="names")
    add_output_options(status, names="`ready`, or the missing parts,")
    add_output_options(down)
    add_output_options(logs, json='print lines of JSON: {"process": ..., "text": ...}')
    add_output_options(settings, names="names")
    for command in (status, down, logs):
        _add_run_option(command)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--run`` to the commands that connect to a run."""
    for command in _walk_commands(parser):
        if _FOLLOWS_RUN & command._option_string_actions.keys() or command.prog.endswith(" env"):
            _add_run_option(command)


def choose_run(options: argparse.Namespace) -> None:
    """Make commands in this process connect to the run of ``--run``."""
    if name := vars(options).pop("run", None):
        os.environ[RUN] = name


def _add_run_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--run", default=argparse.SUPPRESS, metavar="NAME", help=f"a run of `omnibus ps`, if several are up ({RUN})"
    )


def _walk_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _walk_commands(command)
