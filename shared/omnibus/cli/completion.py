"""``omnibus completion``: prints a script that completes the command's words, options and files in a shell."""

import argparse
import re
from collections.abc import Iterator

import shtab

#: Words of a metavar that stand for a place in the file system, and how a shell completes it.
_COMPLETED_PLACES = (("DIR", shtab.DIRECTORY), ("FILE", shtab.FILE), ("PATH", shtab.FILE), ("TARGET", shtab.FILE))


async def print_completion(options: argparse.Namespace) -> int:
    """Print the script for ``options.shell``, generated from the arguments of ``options.parser``."""
    for action in _walk_actions(options.parser):
        _complete_place(action)
    print(shtab.complete(options.parser, shell=options.shell))
    return 0


def _walk_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _walk_actions(command)
        else:
            yield action


def _complete_place(action: argparse.Action) -> None:
    """Complete files and directories if the argument names one. ``NAME`` and ``ID`` are not in the file system."""
    words = re.split(r"\W+", str(action.metavar or action.dest).upper())
    for word, place in _COMPLETED_PLACES:
        if word in words:
            action.complete = place  # type: ignore[attr-defined]
            return
