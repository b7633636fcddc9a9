"""Output of commands for programs: JSON on stdout, errors as JSON on stderr, or names alone."""

import argparse
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from omnibus.errors import OmnibusError, ProblemDetails, error_line

#: Code of an error in the command's arguments, and of a comparison in which nothing was compared.
USAGE, NOT_COMPARED = "usage", "not_compared"
#: Exit code of a command that was to compare two results and could not.
NOT_COMPARED_EXIT_CODE = 3


def add_output_options(
    command: argparse.ArgumentParser, *, names: str = "", json: str = "print JSON", default: Any = False
) -> None:
    """Add ``--json``, and ``-q`` where ``names`` says what it prints, one a line.

    With ``argparse.SUPPRESS`` as ``default``, they may also stand before the subcommand that they are given to.
    """
    group = command.add_mutually_exclusive_group()
    group.add_argument("--json", action="store_true", default=default, help=json)
    if names:
        group.add_argument("-q", "--quiet", action="store_true", default=default, help=f"print {names} alone")


def print_json(value: Any) -> None:
    """Print ``value`` as one line of JSON in UTF-8; numbers that JSON does not have are null."""
    sys.stdout.write(f"{msgspec.json.encode(value).decode()}\n")
    sys.stdout.flush()


def print_names(names: Iterable[object]) -> None:
    """Print one name a line, and nothing where there is none."""
    sys.stdout.write("".join(f"{name}\n" for name in names))


def report_not_compared(why: str, as_json: bool) -> int:
    """Print on stderr ``why`` nothing was compared; returns the exit code."""
    print_error(ProblemDetails(NOT_COMPARED, f"not compared: {why}"), as_json)
    return NOT_COMPARED_EXIT_CODE


def print_error(error: OmnibusError | ProblemDetails, as_json: bool) -> None:
    """Print ``error`` in one line on stderr, see ``omnibus.errors.error_line``."""
    print(error_line(error, as_json), file=sys.stderr)
