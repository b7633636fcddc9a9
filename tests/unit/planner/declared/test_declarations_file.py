"""Declarations: every fault is named. Paths are cut to a request's components, and merged."""

import json
from pathlib import Path as File
from typing import Any

import msgspec
import pytest

from omnibus.cluster.presence import desired_executors
from omnibus.errors import BadRequest
from omnibus.families import catalog
from omnibus.plan import ModelPlan, Path, Plan, decode_plan, encode_plan
from omnibus_planner.declared import declarations_file

VL: dict[str, Any] = {
    "family": "qwen2_5_vl",
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


def make_plan(tmp_path: File, **changes: Any) -> ModelPlan:
    """Return the plan of the model ``m``, declared with ``changes``; None leaves a field out."""
    fields = {field: value for field, value in {**VL, **changes}.items() if value is not None}
    return make_plans(tmp_path, m=fields)["m"]


def make_plans(tmp_path: File, **models: dict[str, Any]) -> dict[str, ModelPlan]:
    file = tmp_path / "models.json"
    file.write_text(json.dumps({"models": models}))
    return declarations_file.build_static_plans(declarations_file.read_models(str(file)))


def read_rates(paths: tuple[Path, ...]) -> dict[str, float]:
    return {path.name: path.rate for path in paths}


def test_each_request_type_gets_the_paths_that_can_serve_it(tmp_path: File):
    model_plan = make_plan(tmp_path)

    assert set(model_plan.types) == {"thinker", "vision+thinker"}
    assert read_rates(model_plan.types["vision+thinker"]) == {"E>L": 70, "EL": 30}
    assert model_plan.types["vision+thinker"][0].options == {"vision": "E", "thinker": "L"}


def test_paths_are_cut_to_what_a_request_uses(tmp_path: File):
    model_plan = make_plan(tmp_path)

    assert read_rates(model_plan.types["thinker"]) == {"L": 70, "EL": 30}
    assert [path.options for path in model_plan.types["thinker"]] == [{"thinker": "L"}, {"thinker": "EL"}]


def test_paths_that_become_equal_are_one_with_both_shares(tmp_path: File):
    options = {**VL["options"], "E2": {"components": ["vision"], "service": "encoder"}}
    model_plan = make_plan(tmp_path, options=options, paths=[
        {"options": ["E", "L"], "share": 40}, {"options": ["E2", "L"], "share": 35}, {"options": ["EL"], "share": 25},
    ])  # fmt: skip

    assert read_rates(model_plan.types["vision+thinker"]) == {"E>L": 40, "E2>L": 35, "EL": 25}
    assert read_rates(model_plan.types["thinker"]) == {"L": 75, "EL": 25}


def test_the_first_option_of_a_path_that_has_a_component_runs_it(tmp_path: File):
    model_plan = make_plan(tmp_path, paths=[{"options": ["E", "EL"], "share": 1}])

    assert model_plan.types["vision+thinker"][0].options == {"vision": "E", "thinker": "EL"}


def test_a_speaking_model_has_types_with_and_without_speech(tmp_path: File):
    model_plan = make_plans(tmp_path, m=catalog.model_declaration("qwen2_5_omni", "/m"))["m"]

    encoders = ["", "vision+", "audio+", "vision+audio+"]
    assert set(model_plan.types) == {f"{some}thinker{more}" for some in encoders for more in ("", "+talker+vocoder")}
    assert read_rates(model_plan.types["thinker+talker+vocoder"]) == {"Th>Ta>V": 80, "M": 20}
    assert model_plan.has_talker


@pytest.mark.parametrize("family", catalog.FAMILIES)
def test_the_usual_declarations_are_good(family: str, tmp_path: File):
    model_plan = make_plans(tmp_path, m=catalog.model_declaration(family, "/m"))["m"]

    assert all(sum(path.rate for path in paths) == 100 for paths in model_plan.types.values())
    assert all(
        set(path.options.values()) <= set(model_plan.options) for paths in model_plan.types.values() for path in paths
    )


@pytest.mark.parametrize("family", catalog.FAMILIES)
def test_what_is_left_out_is_what_the_family_says(family: str, tmp_path: File):
    short = {"family": family, "checkpoint": "/m"}

    model_plans = make_plans(tmp_path, short=short, m=catalog.model_declaration(family, "/m"))

    assert model_plans["short"].tasks.keys() == model_plans["m"].tasks.keys()
    assert msgspec.structs.replace(model_plans["short"], tasks=model_plans["m"].tasks) == model_plans["m"]


def test_of_the_familys_options_only_those_on_a_path_are_deployed(tmp_path: File):
    model_plan = make_plan(tmp_path, options=None, paths=[{"options": ["EL"]}])

    assert set(model_plan.options) == {"EL"}


def test_what_finds_turns_in_what_users_say_is_in_the_plan_where_it_is_declared(tmp_path: File):
    model_plan = make_plan(tmp_path, speech_detector="energy")

    assert model_plan.speech_detector == "energy"
    assert b"speech_detector" not in msgspec.json.encode(make_plan(tmp_path))  # earlier builds have no such field


def test_fewer_components_than_the_family_has_leave_the_rest_out(tmp_path: File):
    model_plan = make_plan(
        tmp_path, family="qwen2_5_omni", components=["vision", "thinker"], encoders=None,
        options={"EL": {"components": ["vision", "thinker"], "service": "llm"}}, paths=[{"options": ["EL"]}],
    )  # fmt: skip

    assert model_plan.encoders == {"image": "vision", "video": "vision"}
    assert set(model_plan.tasks) == {"vision", "thinker"}
    assert not model_plan.has_talker


def test_every_component_has_the_unit_task_of_its_kind_model_and_name(tmp_path: File):
    model_plan = make_plans(tmp_path, **{"qwen2.5-omni": catalog.model_declaration("qwen2_5_omni", "/m")})[
        "qwen2.5-omni"
    ]

    assert model_plan.tasks == {
        "vision": "encode-qwen2_5-omni-vision",
        "audio": "encode-qwen2_5-omni-audio",
        "thinker": "think-qwen2_5-omni-thinker",
        "talker": "talk-qwen2_5-omni-talker",
        "vocoder": "vocode-qwen2_5-omni-vocoder",
    }


def test_the_kind_of_a_unit_task_can_be_declared(tmp_path: File):
    assert make_plan(tmp_path, tasks={"vision": "see"}).tasks == {
        "vision": "see-m-vision",
        "thinker": "think-m-thinker",
    }


def test_an_option_keeps_the_engine_that_it_names(tmp_path: File):
    engine = "elsewhere:engine"
    model_plan = make_plan(tmp_path, options={**VL["options"], "L": {**VL["options"]["L"], "engine": engine}})

    assert {name: option.engine for name, option in model_plan.options.items()} == {"E": "", "L": engine, "EL": ""}


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
    "detector unknown": ({"speech_detector": "ears"}, "speech_detector 'ears' is unknown: it must be energy or silero"),
    "no path": ({"paths": []}, "declares no path"),
    "image defaults": ({"image_defaults": {"steps": -1}}, "image_defaults has steps -1"),
    "share negative": (
        {"paths": [{"options": ["EL"], "share": -1}, {"options": ["EL"], "share": 2}]}, "negative share",
    ),
    "option undeclared": ({"paths": [{"options": ["E", "LL"]}]}, r"undeclared options \['LL'\]"),
    "component missing": ({"paths": [{"options": ["L"]}]}, r"path \('L',\) runs no vision"),
    "shares zero": ({"paths": [{"options": ["EL"], "share": 0}]}, "all paths have share 0"),
    "no thinker": (
        {"components": ["vision"], "options": {"E": VL["options"]["E"]}, "paths": [{"options": ["E"]}]},
        "nothing that every request uses, such as a thinker",
    ),
    "family unknown": ({"family": "qwen9"}, f"no model family 'qwen9'; there is {', '.join(sorted(catalog.FAMILIES))}"),
    "family of apps": ({"family": "python"}, "no model family 'python'"),
    "component twice": ({"components": ["vision", "vision", "thinker"]}, "names a component twice"),
    "component unaddressable": ({"components": ["vision", "thinker", "a+b"]}, r"component 'a\+b' must consist of letters"),
    "kind missing": ({"components": ["vision", "thinker", "poet"]}, "component poet needs a kind of unit task"),
    "kind unaddressable": ({"tasks": {"vision": "a.b"}}, "component vision needs a kind of unit task"),
    "kind of nothing": ({"tasks": {"nose": "smell"}}, r"tasks name \['nose'\]"),
    "service unknown": ({"options": {"EL": {**VL["options"]["EL"], "service": "gpu"}}}, "option EL has service 'gpu'"),
    "option empty": ({"options": {**VL["options"], "X": {"components": [], "service": "llm"}}}, "X has no component"),
    "option lent": ({"options": {**VL["options"], "E": {**VL["options"]["E"], "of": "n/E"}}}, "option E has 'of'"),
    "option named like another model's": ({"options": {**VL["options"], "n/E": VL["options"]["E"]}}, "option n/E has a name"),
    "engine": ({"options": {**VL["options"], "E": {**VL["options"]["E"], "engine": "x"}}}, "E has engine 'x'"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "fault"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_named_with_its_model(tmp_path: File, changes: dict[str, Any], fault: str):
    with pytest.raises(BadRequest, match=f"^model m: .*{fault}"):
        make_plan(tmp_path, **changes)


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
        make_plan(tmp_path, **changes)


def test_a_file_that_is_missing_is_named_with_its_variable(tmp_path: File):
    with pytest.raises(BadRequest, match=r"OMNIBUS_PLANNER_MODELS='.*none\.json' cannot be read: No such file"):
        declarations_file.read_models(str(tmp_path / "none.json"))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"models": []}', '{"models": {}, "more": 1}'])
def test_what_is_no_declaration_is_refused(tmp_path: File, text: str):
    file = tmp_path / "models.json"
    file.write_text(text)

    with pytest.raises(BadRequest, match=r"models\.json"):
        declarations_file.read_models(str(file))


def test_no_file_declares_no_models():
    assert declarations_file.build_static_plans(declarations_file.read_models("")) == {}


def test_models_that_cannot_be_told_apart_on_the_bus_are_refused(tmp_path: File):
    with pytest.raises(
        BadRequest, match=r"vision of model a\.b and vision of model a_b .*'encode-a_b-vision' on the bus: rename"
    ):
        make_plans(tmp_path, **{"a.b": VL, "a_b": VL})


def test_names_that_only_meet_when_they_are_put_together_are_refused_too(tmp_path: File):
    eye = {
        "family": "qwen2_5_vl", "checkpoint": "/m", "components": ["b-thinker"], "encoders": {},
        "tasks": {"b-thinker": "think"}, "options": {"T": {"components": ["b-thinker"], "service": "llm"}},
        "paths": [{"options": ["T"]}],
    }  # fmt: skip

    with pytest.raises(BadRequest, match="'think-a-b-thinker'"):
        make_plans(tmp_path, **{"a": eye, "a-b": VL})


def test_executors_that_cannot_be_told_apart_are_refused(tmp_path: File):
    options = {"a+b": VL["options"]["EL"], "a b": VL["options"]["EL"]}

    with pytest.raises(BadRequest, match=r"a\+b of model m and a b of model m .*the same executor name 'm-a_b'"):
        make_plan(tmp_path, options=options, paths=[{"options": ["a+b"]}, {"options": ["a b"]}])


# Options of engines


def test_settings_of_an_options_engine_reach_its_executors_alone(tmp_path: File):
    engine = {"quantization": "fp8", "speculative_tokens": 4}
    options = {**VL["options"], "L": {**VL["options"]["L"], "vllm": engine}}
    model_plan, plain = make_plan(tmp_path, options=options), make_plan(tmp_path)

    changed_options = {
        option for option in model_plan.options if model_plan.option_origin(option) != plain.option_origin(option)
    }
    assert changed_options == {"L"}
    whole = Plan(1, 0, 0.0, {"m": model_plan})
    assert decode_plan(encode_plan(whole)) == whole
    assert b'"vllm"' not in encode_plan(Plan(1, 0, 0.0, {"m": plain}))  # so that earlier builds can read it
    envs = {each.kind.option: each.env for each in desired_executors(whole).values()}
    assert {name: value for name, value in envs["L"].items() if "VLLM" in name} == {
        "OMNIBUS_VLLM_QUANTIZATION": "fp8",
        "OMNIBUS_VLLM_SPECULATIVE_TOKENS": "4",
    }
    assert not any("VLLM" in name for option, env in envs.items() if option != "L" for name in env)


@pytest.mark.parametrize(
    ("gpus", "stages", "fault"), [(3, 2, "3 GPUs for a pipeline of 2"), (2, 0, "pipeline_parallel 0")]
)
def test_gpus_that_a_pipeline_cannot_share_out_are_refused(tmp_path: File, gpus: int, stages: int, fault: str):
    option = {**VL["options"]["L"], "gpus": gpus, "vllm": {"pipeline_parallel": stages}}

    with pytest.raises(BadRequest, match=f"option L has {fault}"):
        make_plan(tmp_path, options={**VL["options"], "L": option})


# Adapters


def test_executors_of_the_language_model_alone_load_adapters(tmp_path: File):
    model_plan, plain = make_plan(tmp_path, adapters={"poet": "/poet"}), make_plan(tmp_path)

    assert {option: model_plan.option_adapters(option) for option in model_plan.options} == {
        "E": {},
        "L": {"poet": "/poet"},
        "EL": {"poet": "/poet"},
    }
    changed_options = {
        option for option in model_plan.options if model_plan.option_origin(option) != plain.option_origin(option)
    }
    assert changed_options == {"L", "EL"}
    executors = desired_executors(Plan(1, 0, 0.0, {"m": model_plan})).values()
    assert {each.kind.option: each.env.get("OMNIBUS_EXECUTOR_ADAPTERS") for each in executors} == {
        "E": None,
        "L": '{"poet":"/poet"}',
        "EL": '{"poet":"/poet"}',
    }


@pytest.mark.parametrize(
    ("models", "fault"),
    [
        ({"m": {**VL, "adapters": {"m": "/a"}}}, "adapter m has the name of model m: rename one"),
        (
            {"m": {**VL, "adapters": {"a": "/a"}}, "n": {**VL, "adapters": {"a": "/b"}}},
            "model n: adapter a has the name of adapter a of m",
        ),
        ({"m": {"family": "qwen_image", "checkpoint": "/m", "adapters": {"a": "/a"}}}, "has adapters, but no language"),
        ({"m": {**VL, "adapters": {"": "/a"}}}, "has an adapter without a name"),
        ({"m": {**VL, "adapters": {"a": ""}}}, "adapter a has no directory"),
    ],
)
def test_wrong_adapters_are_refused(tmp_path: File, models: dict[str, Any], fault: str):
    with pytest.raises(BadRequest, match=fault):
        make_plans(tmp_path, **models)


def test_adapters_of_a_shared_language_model_are_its_owners(tmp_path: File):
    user = {
        **VL,
        "shares": {"thinker": "m"},
        "options": {"E": VL["options"]["E"]},
        "paths": [{"options": ["E", "m/L"]}],
        "adapters": {"a": "/a"},
    }

    with pytest.raises(BadRequest, match="has adapters of thinker, which is m's: declare them there"):
        make_plans(tmp_path, m=VL, n=user)
