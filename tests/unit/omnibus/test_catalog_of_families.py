"""The built-in families are valid for the planner and their libraries."""

import msgspec
import pytest

from omnibus.errors import BadRequest
from omnibus.families import catalog, plugins
from omnibus.plan import ModelPlan
from omnibus_engines import registry as engines
from omnibus_planner.declared import declarations_file


def plans(models: dict[str, dict[str, object]]) -> dict[str, ModelPlan]:
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
    made = plans({"m": catalog.split_declaration("qwen2_5_vl", "/m", path)})["m"]

    assert [(each.name, each.options) for each in made.types["vision+prefill+decode"]] == [(path, runs)]
    assert set(made.options) == {*path.split(">")}
    assert made.tasks["prefill"] == "prefill-m-prefill"
    assert {component for component in made.types if "vision" not in component} == {"prefill+decode"}


def test_requests_of_a_model_that_chats_and_paints_use_one_side_of_it():
    made = plans({"m": catalog.model_declaration("janus", "/m")})["m"]

    assert {kind: [path.name for path in paths] for kind, paths in made.types.items()} == {
        "thinker": ["L", "EL"],
        "vision+thinker": ["E>L", "EL", "E>EL"],
        "text_encoder+dit+vae": ["T>D>V", "TDV"],
    }


def test_a_model_that_chats_and_paints_runs_in_two_halves_where_it_chats():
    made = plans({"m": catalog.split_declaration("janus", "/m", "E>P>D")})["m"]

    assert made.types["vision+prefill+decode"][0].options == {"vision": "E", "prefill": "P", "decode": "D"}
    assert made.options["D"].components == ("decode",)
    assert set(made.types) == {"prefill+decode", "vision+prefill+decode"}


@pytest.mark.parametrize("name", ["qwen_image", "glm_image", "qwen2_5_omni"])
def test_a_model_that_does_one_thing_does_it_with_all_of_its_components(name: str):
    known = catalog.FAMILIES[name]

    assert catalog.component_chains(known["components"], known["tasks"]) == [known["components"]]


def test_talker_and_vocoder_may_share_an_executor():
    paths = [{"options": ["EV", "EA", "Th", "Ta+V"], "share": 1}]

    made = plans({"m": {"family": "qwen2_5_omni", "checkpoint": "/m", "paths": paths}})["m"]

    assert set(made.options) == {"EV", "EA", "Th", "Ta+V"}
    assert made.options["Ta+V"].components == ("talker", "vocoder")


@pytest.mark.parametrize("name", catalog.TWINS)
def test_a_twin_runs_its_own_llm_behind_the_other_models_encoder(name: str):
    shared = catalog.TWINS[name]

    made = plans(
        {
            shared: catalog.model_declaration(catalog.LOCAL[shared], "/m"),
            name: catalog.shared_encoder_declaration(name, "/t"),
        }
    )

    assert made[name].tasks["vision"] == made[shared].tasks["vision"]
    assert made[name].tasks["thinker"] != made[shared].tasks["thinker"]
    assert [path.name for path in made[name].types["vision+thinker"]] == [f"{shared}/E>L"]
    assert sum(option.replicas for option in made[name].options.values()) == 1


def test_twins_are_not_among_the_models_that_run_unasked():
    assert not set(catalog.TWINS) & set(catalog.TINY)
