"""Declarations: every fault is named; paths are cut to what a request uses, and merged."""

import json
from pathlib import Path as File
from typing import Any

import pytest

from omnibus import catalog
from omnibus.errors import BadRequest
from omnibus.plan import ModelPlan, Path
from services.planner import declare

VL: dict[str, Any] = {
    "family": "f",
    "checkpoint": "/m",
    "components": ["vision", "thinker"],
    "encoders": {"image": "vision", "video": "vision"},
    "options": {
        "E": {"components": ["vision"], "service": "encoder"},
        "L": {"components": ["thinker"], "service": "llm"},
        "EL": {"components": ["vision", "thinker"], "service": "llm"},
    },
    "paths": [{"options": ["E", "L"], "share": 70}, {"options": ["EL"], "share": 30}],
}


def plan(tmp_path: File, **changes: Any) -> ModelPlan:
    return declare.model_plan(read(tmp_path, **changes)["m"])


def read(tmp_path: File, **changes: Any) -> dict[str, declare.Declared]:
    file = tmp_path / "models.json"
    file.write_text(json.dumps({"models": {"m": {**VL, **changes}}}))
    return declare.read(str(file))


def rates(paths: tuple[Path, ...]) -> dict[str, float]:
    return {path.name: path.rate for path in paths}


def test_each_request_type_gets_the_paths_that_can_serve_it(tmp_path: File):
    made = plan(tmp_path)

    assert set(made.types) == {"thinker", "vision+thinker"}
    assert rates(made.types["vision+thinker"]) == {"E>L": 70, "EL": 30}
    assert made.types["vision+thinker"][0].options == {"vision": "E", "thinker": "L"}


def test_paths_are_cut_to_what_a_request_uses(tmp_path: File):
    made = plan(tmp_path)

    assert rates(made.types["thinker"]) == {"L": 70, "EL": 30}
    assert [path.options for path in made.types["thinker"]] == [{"thinker": "L"}, {"thinker": "EL"}]


def test_paths_that_become_equal_are_one_with_both_shares(tmp_path: File):
    options = {**VL["options"], "E2": {"components": ["vision"], "service": "encoder"}}
    made = plan(tmp_path, options=options, paths=[
        {"options": ["E", "L"], "share": 40}, {"options": ["E2", "L"], "share": 35}, {"options": ["EL"], "share": 25},
    ])  # fmt: skip

    assert rates(made.types["vision+thinker"]) == {"E>L": 40, "E2>L": 35, "EL": 25}
    assert rates(made.types["thinker"]) == {"L": 75, "EL": 25}


def test_the_first_option_of_a_path_that_has_a_component_runs_it(tmp_path: File):
    made = plan(tmp_path, paths=[{"options": ["E", "EL"], "share": 1}])

    assert made.types["vision+thinker"][0].options == {"vision": "E", "thinker": "EL"}


def test_a_speaking_model_has_types_with_and_without_speech():
    declared = catalog.declaration("qwen2_5_omni", "/m")
    made = declare.model_plan(declare.msgspec.convert(declared, declare.Declared))

    encoders = ["", "vision+", "audio+", "vision+audio+"]
    assert set(made.types) == {f"{some}thinker{more}" for some in encoders for more in ("", "+talker+vocoder")}
    assert rates(made.types["thinker+talker+vocoder"]) == {"Th>Ta>V": 80, "M": 20}
    assert made.speaks


@pytest.mark.parametrize("family", catalog.FAMILIES)
def test_the_usual_declarations_are_good(family: str, tmp_path: File):
    file = tmp_path / "models.json"
    file.write_text(json.dumps({"models": {"m": catalog.declaration(family, "/m")}}))

    made = declare.model_plan(declare.read(str(file))["m"])

    assert all(sum(path.rate for path in paths) == 100 for paths in made.types.values())
    assert all(set(path.options.values()) <= set(made.options) for paths in made.types.values() for path in paths)


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "encoder unknown": ({"encoders": {"image": "eye"}}, "encoder of image is 'eye'"),
    "component unknown": (
        {"options": {**VL["options"], "X": {"components": ["talker"], "service": "llm"}}},
        "option X has unknown components",
    ),
    "replicas negative": (
        {"options": {**VL["options"], "E": {"components": ["vision"], "service": "encoder", "replicas": -1}}},
        "option E has -1 replicas",
    ),
    "no path": ({"paths": []}, "declares no path"),
    "share negative": (
        {"paths": [{"options": ["EL"], "share": -1}, {"options": ["EL"], "share": 2}]}, "negative share",
    ),
    "option undeclared": ({"paths": [{"options": ["E", "LL"]}]}, r"undeclared options \['LL'\]"),
    "component missing": ({"paths": [{"options": ["L"]}]}, r"runs no \['vision'\]"),
    "shares zero": ({"paths": [{"options": ["EL"], "share": 0}]}, "all paths have share 0"),
    "no thinker": (
        {"components": ["vision"], "options": {"E": VL["options"]["E"]}, "paths": [{"options": ["E"]}]},
        "thinker",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "fault"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_named_with_its_model(tmp_path: File, changes: dict[str, Any], fault: str):
    with pytest.raises(BadRequest, match=f"model m: .*{fault}"):
        read(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"colour": "blue"}, "colour"),
        ({"components": "vision"}, "components"),
        ({"paths": [{"options": ["EL"], "share": "most"}]}, "share"),
        ({"options": {"E": {"components": ["vision"]}}}, "service"),
    ],
)
def test_a_field_that_is_wrong_is_named_with_its_file(tmp_path: File, changes: dict[str, Any], field: str):
    with pytest.raises(BadRequest, match=rf"models\.json: .*{field}"):
        read(tmp_path, **changes)


def test_a_file_that_is_missing_is_named_with_its_variable(tmp_path: File):
    with pytest.raises(BadRequest, match=r"OMNIBUS_PLANNER_MODELS='.*none\.json' cannot be read: No such file"):
        declare.read(str(tmp_path / "none.json"))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"models": []}', '{"models": {}, "more": 1}'])
def test_what_is_no_declaration_is_refused(tmp_path: File, text: str):
    file = tmp_path / "models.json"
    file.write_text(text)

    with pytest.raises(BadRequest, match=r"models\.json"):
        declare.read(str(file))
