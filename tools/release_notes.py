"""Notes of a release: its section of ``CHANGELOG.md``. ``python -m tools.release_notes VERSION`` prints them."""

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def release_notes(changelog: str, version: str) -> str:
    """Return the section of ``version``, or *Unreleased* if it has none yet.

    Raises ``ValueError`` if both are missing or empty.
    """
    sections = dict(re.findall(r"(?ms)^## \[?([^\s\]]+)\]?[^\n]*\n(.*?)(?=^## |\Z)", changelog))
    text = (sections.get(version) or sections.get("Unreleased") or "").strip()
    if not text:
        raise ValueError(f"CHANGELOG.md says nothing of {version}")
    return text + "\n"


if __name__ == "__main__":
    sys.stdout.write(release_notes(CHANGELOG.read_text(), sys.argv[1]))
