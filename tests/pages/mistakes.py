"""The page of mistakes and their answers, from ``tests.mistakes``."""

from collections.abc import Iterable

from tests.mistakes import ALONE, RUNNING, Mistake
from tests.mistakes.table import USAGE

HEAD = f"""# Mistakes and their answers

What the command line says to common mistakes. Each is checked before anything starts and answered by at most three
lines on standard error that name the cause and what to do; nothing is left behind. The exit code is {USAGE} for a command
that cannot be understood, 78 for a configuration that cannot work (supervisors such as systemd need not start it again),
1 for everything else.

Each row is made for real by a test. This page is written from `tests/mistakes/table.py`, by `python -m tests.pages`.
"""


def make_page() -> str:
    return "\n".join(
        [HEAD, *_format_section("Before anything runs", ALONE), *_format_section("Beside a running system", RUNNING)]
    )


def _format_section(title: str, mistakes: Iterable[Mistake]) -> list[str]:
    rows = [
        f"| {each.what} | {_format_code(each.command)}{_format_files(each)} | {_format_code(each.answer)} | {each.code} |"
        for each in mistakes
    ]
    return [f"## {title}", "", "| mistake | command | answer | code |", "|---|---|---|---|", *rows, ""]


def _format_files(mistake: Mistake) -> str:
    files = [f" with {_format_code(text.strip())} in `{name}`" for name, text in mistake.files.items()]
    return "".join([*files, *(f" with `{name}={value}`" for name, value in mistake.environ.items())])


def _format_code(text: str) -> str:
    """``text`` as code in a cell, line by line.

    Lines with backquotes need two.
    """
    text = text.replace("{taken}", "8000")
    return "<br>".join(
        f"`` {line} ``" if "`" in line else f"`{line}`" for line in text.replace("|", "\\|").splitlines()
    )
