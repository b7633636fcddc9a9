"""Versions in docs/clients.md are those that `make test-clients` installs."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_ROW = re.compile(
    r"^\| (?:\[(?P<linked>[^\]]+)\]\([^)]*\)(?: \(`(?P<package>[^`]+)`\))?) \| (?P<version>\S+) \|", re.MULTILINE
)
NODE_NAMES = {"openai for Node.js": "openai"}


def test_the_page_names_the_versions_that_are_installed() -> None:
    rows = list(_ROW.finditer((ROOT / "docs" / "clients.md").read_text()))
    pinned = [
        tuple(line.split("=="))
        for name in ("requirements-clients.txt", "requirements-clients-openai2.txt", "requirements-clients-voice.txt")
        for line in (ROOT / name).read_text().splitlines()
        if "==" in line
    ]
    node = json.loads((ROOT / "tests" / "clients" / "package.json").read_text())["dependencies"]

    assert len(rows) == 11
    for row in rows:
        name, version = row["linked"], row["version"]
        if name in NODE_NAMES or row["package"]:
            assert node[row["package"] or NODE_NAMES[name]] == version, name
        else:
            assert (name, version) in pinned, name
