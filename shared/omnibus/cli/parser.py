"""Command-line parser that reports a mistake and a suggestion in one line."""

import argparse
import re
from typing import NoReturn

from omnibus.suggestions import did_you_mean

_INVALID_CHOICE = re.compile(r"argument (?P<of>[^:]+): invalid choice: '(?P<word>[^']*)' \(choose from (?P<known>.*)\)")
USAGE_EXIT_CODE = 2
#: Most choices in a message.
_MAX_LISTED = 8


class UsageError(Exception):
    """Arguments that the command does not accept."""


class CommandParser(argparse.ArgumentParser):
    """Argument parser that raises ``UsageError`` with one line. Only ``--help`` prints the usage."""

    def error(self, message: str) -> NoReturn:
        if invalid := _INVALID_CHOICE.search(message):
            choices = re.findall(r"'([^']*)'", invalid["known"])
            suggestion = did_you_mean(invalid["word"], choices)
            there = f"; there is {', '.join(choices)}" if not suggestion and len(choices) <= _MAX_LISTED else ""
            message = f"there is no {invalid['of'].lower()} {invalid['word']!r}{suggestion}{there}"
        raise UsageError(f"{message} (`{self.prog} --help`)")
