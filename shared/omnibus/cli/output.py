"""Output of commands for programs: JSON on stdout, errors as JSON on stderr, or names alone."""

import argparse
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from omnibus.errors import OmnibusError, ProblemDetails, error_line

#: Codes of an error in the arguments, and of a comparison that compared nothing.
USAGE, NOT_COMPARED = "usage", "not_compared"
#: Exit code of a command that could not compare two results.
NOT_COMPARED_EXIT_CODE = 3


def add_output_options(
    command: argparse.ArgumentParser, *, names: str = "", json: str = "print JSON", default: Any = False
) -> None:
    """Add ``--json``, and ``-q`` if ``names`` describes its output.

    ``-q`` prints one name a line. With ``argparse.SUPPRESS`` as ``default``, the options may also precede the
    subcommand.
    """
    group = command.add_mutually_exclusive_group()
    group.add_argument("--json", action="store_true", default=default, help=json)
    if names:
        group.add_argument("-q", "--quiet", action="store_true", default=default, help=f"print {names} alone")


def print_json(value: Any) -> None:
    """Print ``value`` as one line of JSON in UTF-8. Numbers that JSON does not have become null."""
    sys.stdout.write(f"{msgspec.json.encode(value).decode()}\n")
    sys.stdout.flush()


def print_names(names: Iterable[object]) -> None:
    """Print one name a line, and nothing for no names."""
    sys.stdout.write("".join(f"{name}\n" for name in names))


def report_not_compared(why: str, as_json: bool) -> int:
    """Print on stderr ``why`` nothing was compared, and return the exit code."""
    print_error(ProblemDetails(NOT_COMPARED, f"not compared: {why}"), as_json)
    return NOT_COMPARED_EXIT_CODE


def print_error(error: OmnibusError | ProblemDetails, as_json: bool) -> None:
    """Print ``error`` in one line on stderr, see ``omnibus.errors.error_line``."""
    print(error_line(error, as_json), file=sys.stderr)
