"""The compose files avoid everything that compose v1 and v2 read differently.

v1 is Python with YAML 1.1, checks the types of values, and does not support ``name``. v2 is Go with YAML 1.2, warns
about ``version``, refuses a duplicate limit, and builds all images at once. Only v2 restarts containers that share a
namespace with a restarted one.
"""

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parents[2] / "deploy" / "compose"
LAYERS = sorted(path.name for path in HERE.glob("compose*.yaml"))
#: Plain words that are the same to YAML 1.1 and 1.2.
ALIKE = {
    "bool": r"true|false",
    "int": r"0|-?[1-9]\d*",
    "float": r"-?\d+\.\d+",
    "null": "null|",
    "merge": "<<",
    "str": r"(?!0o?\d|\d+e).*",
}
#: A limit of a service, and the same one below ``deploy.resources.limits``.
LIMITS = {"cpus": "cpus", "mem_limit": "memory", "pids_limit": "pids"}


def load_layer(name: str) -> dict[str, Any]:
    return yaml.safe_load((HERE / name).read_text())


def list_services() -> list[tuple[str, str, dict[str, Any]]]:
    """Return layer, service and its settings."""
    return [(name, service, spec) for name in LAYERS for service, spec in load_layer(name)["services"].items()]


BASE = load_layer("compose.yaml")["services"]
EACH = pytest.mark.parametrize(("layer", "service", "told"), list_services(), ids=lambda each: str(each)[:30])


def walk_nodes(node: yaml.Node) -> Iterator[yaml.Node]:
    yield node
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            for one in pair:
                yield from walk_nodes(one)
    elif isinstance(node, yaml.SequenceNode):
        for one in node.value:
            yield from walk_nodes(one)


def read_tree(name: str) -> list[yaml.Node]:
    return list(walk_nodes(yaml.compose((HERE / name).read_text(), yaml.SafeLoader)))


@pytest.mark.parametrize("name", LAYERS)
def test_nothing_at_the_top_is_for_one_of_them(name: str):
    assert {key for key in load_layer(name) if not key.startswith("x-")} <= {"services", "volumes", "networks"}


@pytest.mark.parametrize("name", LAYERS)
def test_no_word_is_something_else_to_yaml_1_1(name: str):
    plain = [node for node in read_tree(name) if isinstance(node, yaml.ScalarNode) and node.style is None]

    assert [
        node.value for node in plain if not re.fullmatch(ALIKE[node.tag.rpartition(":")[2]], node.value, re.DOTALL)
    ] == []


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_merged_together_says_nothing_twice(name: str):
    merged_keys = [
        [{key.value for key, _ in flatten_mapping(one)} for one in value.value]
        for node in read_tree(name)
        if isinstance(node, yaml.MappingNode)
        for key, value in node.value
        if key.value == "<<" and isinstance(value, yaml.SequenceNode)
    ]

    assert [one & other for together in merged_keys for one, other in combinations(together, 2) if one & other] == []
    assert merged_keys or name != "compose.yaml"


def flatten_mapping(node: yaml.MappingNode) -> list[tuple[yaml.Node, yaml.Node]]:
    """Return the pairs of a mapping, including merged ones."""
    own = [(key, value) for key, value in node.value if key.value != "<<"]
    into = [value for key, value in node.value if key.value == "<<"]
    more = [one for value in into for one in (value.value if isinstance(value, yaml.SequenceNode) else [value])]
    return own + [pair for one in more for pair in flatten_mapping(one)]


@EACH
def test_variables_are_maps_of_texts(layer: str, service: str, told: dict[str, Any]):
    told_env = told.get("environment", {})

    assert {type(each) for each in (*told_env.keys(), *told_env.values())} <= {str}


@EACH
def test_no_limit_is_said_twice(layer: str, service: str, told: dict[str, Any]):
    all_told = [told, BASE.get(service, {})]
    below = {limit for each in all_told for limit in each.get("deploy", {}).get("resources", {}).get("limits", {})}

    assert [
        limit for limit, other in LIMITS.items() if other in below and any(limit in each for each in all_told)
    ] == []


@EACH
def test_no_container_lives_in_another_ones_namespace(layer: str, service: str, told: dict[str, Any]):
    assert not told.keys() & {"ipc", "pid", "network_mode", "volumes_from"}


@EACH
def test_what_is_waited_for_can_come(layer: str, service: str, told: dict[str, Any]):
    known_services = {**BASE, **load_layer(layer)["services"]}
    for name, how in told.get("depends_on", {}).items():
        dependency = known_services[name]
        assert how["condition"] in {"service_healthy", "service_completed_successfully"}
        # A one-shot service must not restart, and a healthy one needs a health check.
        assert (
            ("restart" not in dependency)
            if how["condition"].endswith("successfully")
            else ("healthcheck" in dependency)
        )


def test_images_of_one_name_are_built_in_one_way():
    builds = [(spec["image"], spec["build"]) for spec in BASE.values() if "build" in spec]

    assert all(build == dict(builds)[image] for image, build in builds)
    assert len(dict(builds)) < len(builds)


def test_no_container_has_a_fixed_name():
    assert [service for _, service, spec in list_services() if "container_name" in spec] == []
