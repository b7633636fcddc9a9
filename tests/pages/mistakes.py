"""The section on mistakes at the command line, from ``tests.mistakes``."""

from tests.mistakes import ALONE, Mistake
from tests.mistakes.table import USAGE

HEAD = f"""## Mistakes at the command line

A command checks its arguments, files and settings before it starts anything. It answers a mistake with at most three
lines on standard error, which name the cause and the remedy. The exit code is {USAGE} for an invalid command,
78 for a configuration that cannot work, and 1 for other errors ([all exit codes](commands.md#for-programs)). Tell
supervisors such as systemd not to restart after 78. Some examples:

| mistake | answer | code |
|---|---|---|
"""
#: Mistakes that the page shows. Tests make all of ``tests.mistakes``.
SHOWN = (
    "a command is misspelt",
    "nothing runs",
    "the port is taken",
    "a misspelt field",
    "a checkpoint that is not there",
    "a misspelt setting",
    "a mode that there is not",
    "more shared memory than there is",
    "an app that imports what is not installed",
)


def section() -> str:
    """Return the section, with one row for each of ``SHOWN``. Raises ``KeyError`` for an unknown one."""
    mistakes = {each.what: each for each in ALONE}
    return HEAD + "\n".join(_row(mistakes[what]) for what in SHOWN) + "\n"


def _row(mistake: Mistake) -> str:
    environ = [f" with {_format_code(f'{name}={value}')}" for name, value in mistake.environ.items()]
    return f"| {_format_code(mistake.command)}{''.join(environ)} | {_format_code(mistake.answer)} | {mistake.code} |"


def _format_code(text: str) -> str:
    """``text`` as code in a cell, line by line.

    Lines with backquotes need two.
    """
    text = text.replace("{taken}", "8000")
    return "<br>".join(
        f"`` {line} ``" if "`" in line else f"`{line}`" for line in text.replace("|", "\\|").splitlines()
    )
