"""The parser of the command line: one line for a mistake, with what was probably meant."""

import argparse
import re
import sys
from typing import NoReturn

from omnibus.suggestions import did_you_mean

_INVALID_CHOICE = re.compile(r"argument (?P<of>[^:]+): invalid choice: '(?P<word>[^']*)' \(choose from (?P<known>.*)\)")
_USAGE_EXIT_CODE = 2


class CommandParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line each; usage is what ``--help`` prints."""

    def error(self, message: str) -> NoReturn:
        if invalid := _INVALID_CHOICE.search(message):
            known = re.findall(r"'([^']*)'", invalid["known"])
            message = f"there is no {invalid['of'].lower()} {invalid['word']!r}{did_you_mean(invalid['word'], known)}"
        print(f"omnibus: {message} (`{self.prog} --help`)", file=sys.stderr)
        sys.exit(_USAGE_EXIT_CODE)
