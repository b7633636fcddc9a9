"""``omnibus settings``: prints all environment variables, with their values in this shell."""

import argparse
import os
from collections.abc import Iterator

from omnibus.cli.format.tables import screen_width, text_lines
from omnibus.cli.output import print_json, print_names
from omnibus.errors import BadRequest
from omnibus.reference.fields import Variable, area_variables
from omnibus.reference.settings import AREAS, OTHER_VARIABLES, check_environment

_LINE_WIDTH = 100


async def list_settings(options: argparse.Namespace) -> int:
    """Print the variables that match ``options.words``, then check the environment.

    Raises ``BadRequest`` for an unknown variable, for an invalid value, and if no variable matches.
    """
    words = [word.lower() for word in options.words]
    rows = [each for each in _variables() if all(word in each.name.lower() for word in words)]
    if options.set:
        rows = [each for each in rows if each.value is not None]
    elif not rows:
        raise BadRequest(f"no setting has {' and '.join(words)} in its name; `omnibus settings` lists all of them")
    if options.json:
        print_json([each._asdict() for each in rows])
    elif options.quiet:
        print_names(each.name for each in rows)
    else:
        print("\n".join(line for each in rows for line in _lines(each)))
    check_environment(os.environ)
    return 0


def _variables() -> Iterator[Variable]:
    for area in AREAS:
        yield from area_variables(area, os.environ)
    for name, meaning in OTHER_VARIABLES.items():
        yield Variable(name, "", "text", meaning, os.environ.get(name))


def _lines(variable: Variable) -> list[str]:
    default = str(variable.default).lower() if isinstance(variable.default, bool) else variable.default
    default_text = "empty" if default in ("", None) else f"{default}"
    unit = "" if variable.unit in ("text", "yes or no") else f" {variable.unit}"
    here = "" if variable.value is None else f"   here: {variable.value}"
    return [
        *text_lines(f"{variable.name}   default: {default_text}{unit}{here}", 8),
        *text_lines(f"    {variable.meaning}", 4, min(screen_width() or _LINE_WIDTH, _LINE_WIDTH)),
    ]
