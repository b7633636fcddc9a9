"""Commands, code and data of a page: what a reader types, saves or runs, in the order of the page."""

import functools
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
#: Pages with blocks that a reader uses.
PAGES = sorted((ROOT / "docs").glob("*.md"))
SHELL, PYTHON, JSON, SCRIPT = "sh", "python", "json", "js"
_LANGUAGES = {
    "sh": SHELL, "bash": SHELL, "python": PYTHON, "py": PYTHON, "json": JSON, "js": SCRIPT, "javascript": SCRIPT
}  # fmt: skip
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: A block without a language is for the shell if it begins like this; else it is output.
_TYPED = re.compile(r"(?:[A-Z_]+=\S+ )*(?:omnibus|python|make|docker|cd|export|\.venv/bin/\w+) ")


class Step(NamedTuple):
    """One command of a shell, or a whole block of another language, as in ``page``."""

    page: str
    language: str
    text: str


@functools.cache
def read_steps(page: str) -> tuple[Step, ...]:
    """Return the steps of ``docs/<page>.md`` in their order; output, YAML and other text are none."""
    steps = list[Step]()
    for name, text in _BLOCK.findall((ROOT / "docs" / f"{page}.md").read_text()):
        language = _LANGUAGES.get(name) or (SHELL if not name and _TYPED.match(text) else "")
        texts = split_commands(text) if language == SHELL else [text] if language else []
        steps += (Step(page, language, each) for each in texts)
    return tuple(steps)


def split_commands(text: str) -> list[str]:
    """Split ``text`` into the commands that a shell reads one after another."""
    commands, begun = list[str](), ""
    for line in text.splitlines(keepends=True):
        begun += line
        if not begun.strip():
            begun = ""
        elif not line.endswith("\\\n") and _is_whole(begun):
            commands.append(begun.strip())
            begun = ""
    return [*commands, *([begun.strip()] if begun else [])]


def _is_whole(text: str) -> bool:
    """Return whether the shell would run ``text`` now; it warns of a document without its end."""
    check = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True, check=False, timeout=10)
    return check.returncode == 0 and not check.stderr


PAGES_WITH_STEPS = tuple(page.stem for page in PAGES if read_steps(page.stem))
