"""The built-in families are valid for the planner and their libraries."""

import msgspec
import pytest

from omnibus.errors import BadRequest
from omnibus.families import catalog, plugins
from omnibus.plan import ModelPlan
from omnibus_engines import registry as engines
from omnibus_planner.declared import declarations_file


def make_plans(models: dict[str, dict[str, object]]) -> dict[str, ModelPlan]:
    return declarations_file.build_static_plans(msgspec.convert(models, dict[str, declarations_file.DeclaredModel]))


@pytest.mark.parametrize("name", catalog.FAMILIES)
def test_a_built_in_family_has_the_shape_of_a_plugins(name: str):
    family = msgspec.convert(catalog.find_family(name), plugins.PluginFamily)

    assert family.components == tuple(catalog.FAMILIES[name]["components"])
    assert set(family.tasks) == {*family.components, *catalog.SPLIT, *catalog.EMBED}
    assert (family.composite, family.engine) == ("", "")


@pytest.mark.parametrize("name", catalog.FAMILIES)
def test_every_component_has_an_engine(name: str):
    assert set(catalog.find_family(name)["tasks"]) <= set(engines._TRANSFORMERS_RUNNERS)


def test_an_unknown_family_is_refused_with_those_there_are():
    with pytest.raises(BadRequest, match=f"no model family 'gpt'; there is {', '.join(sorted(catalog.FAMILIES))}"):
        catalog.find_family("gpt")


def test_the_family_of_apps_own_tasks_cannot_be_declared():
    with pytest.raises(BadRequest, match="no model family 'python'"):
        catalog.find_family(catalog.PYTHON)


@pytest.mark.parametrize(
    ("path", "runs"),
    [
        ("E>P>D", {"vision": "E", "prefill": "P", "decode": "D"}),
        ("EP>D", {"vision": "EP", "prefill": "EP", "decode": "D"}),
        ("ED>P", {"vision": "ED", "prefill": "P", "decode": "ED"}),
        ("E>PD", {"vision": "E", "prefill": "PD", "decode": "PD"}),
        ("EPD", {"vision": "EPD", "prefill": "EPD", "decode": "EPD"}),
    ],
)
def test_a_language_model_may_run_in_two_halves(path: str, runs: dict[str, str]):
    model_plan = make_plans({"m": catalog.split_declaration("qwen2_5_vl", "/m", path)})["m"]

    assert [(each.name, each.options) for each in model_plan.types["vision+prefill+decode"]] == [(path, runs)]
    assert set(model_plan.options) == {*path.split(">")}
    assert model_plan.tasks["prefill"] == "prefill-m-prefill"
    assert {component for component in model_plan.types if "vision" not in component} == {"prefill+decode"}


def test_requests_of_a_model_that_chats_and_paints_use_one_side_of_it():
    model_plan = make_plans({"m": catalog.model_declaration("janus", "/m")})["m"]

    assert {kind: [path.name for path in paths] for kind, paths in model_plan.types.items()} == {
        "thinker": ["L", "EL"],
        "vision+thinker": ["E>L", "EL", "E>EL"],
        "text_encoder+dit+vae": ["T>D>V", "TDV"],
    }


def test_a_model_that_chats_and_paints_runs_in_two_halves_where_it_chats():
    model_plan = make_plans({"m": catalog.split_declaration("janus", "/m", "E>P>D")})["m"]

    assert model_plan.types["vision+prefill+decode"][0].options == {"vision": "E", "prefill": "P", "decode": "D"}
    assert model_plan.options["D"].components == ("decode",)
    assert set(model_plan.types) == {"prefill+decode", "vision+prefill+decode"}


@pytest.mark.parametrize("name", ["qwen_image", "glm_image", "qwen2_5_omni"])
def test_a_model_that_does_one_thing_does_it_with_all_of_its_components(name: str):
    family = catalog.FAMILIES[name]

    assert catalog.component_chains(family["components"], family["tasks"]) == [family["components"]]


def test_talker_and_vocoder_may_share_an_executor():
    paths = [{"options": ["EV", "EA", "Th", "Ta+V"], "share": 1}]

    model_plan = make_plans({"m": {"family": "qwen2_5_omni", "checkpoint": "/m", "paths": paths}})["m"]

    assert set(model_plan.options) == {"EV", "EA", "Th", "Ta+V"}
    assert model_plan.options["Ta+V"].components == ("talker", "vocoder")


@pytest.mark.parametrize("name", catalog.TWINS)
def test_a_twin_runs_its_own_llm_behind_the_other_models_encoder(name: str):
    shared_model = catalog.TWINS[name]

    model_plans = make_plans(
        {
            shared_model: catalog.model_declaration(catalog.LOCAL[shared_model], "/m"),
            name: catalog.shared_encoder_declaration(name, "/t"),
        }
    )

    assert model_plans[name].tasks["vision"] == model_plans[shared_model].tasks["vision"]
    assert model_plans[name].tasks["thinker"] != model_plans[shared_model].tasks["thinker"]
    assert [path.name for path in model_plans[name].types["vision+thinker"]] == [f"{shared_model}/E>L"]
    assert sum(option.replicas for option in model_plans[name].options.values()) == 1


def test_twins_are_not_among_the_models_that_run_unasked():
    assert not set(catalog.TWINS) & set(catalog.TINY)
