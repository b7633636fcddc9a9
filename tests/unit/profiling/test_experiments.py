"""The measured options, the other executors they need, and their paths."""

import msgspec
import pytest

from omnibus.errors import BadRequest
from omnibus.plan import DeploymentOption
from omnibus.profiling import experiments, measured_model
from omnibus_planner.declared import declarations_file
from omnibus_planner.declared.model import DeclaredModel
from tests.unit.profiling.subjects import declare_model, make_omni_subject, make_vl_subject


def build_trial(subject, name, **more):
    return experiments.make_trial(subject, name, experiments.choose_options(subject, **more)[name])


def test_declared_options_are_measured_unless_others_are_asked_for():
    assert list(experiments.choose_options(make_vl_subject())) == ["E", "L", "EL"]
    assert list(experiments.choose_options(make_vl_subject(), only=["L"])) == ["L"]


def test_batches_and_degrees_of_parallelism_are_further_options():
    variants = experiments.vary_options(experiments.choose_options(make_vl_subject()), [1, 8], [1, 2])

    assert list(variants) == [
        "E", "L", "EL", "E-b1", "E-b8", "L-b1", "L-b8", "L-tp2", "EL-b1", "EL-b8", "EL-tp2",
    ]  # fmt: skip
    assert (variants["L-b8"].batch, variants["L-b8"].components) == (8, ("thinker",))
    assert (variants["EL-tp2"].gpus, variants["EL-tp2"].batch) == (2, 0)
    new_trial = experiments.make_trial(make_vl_subject(), "L-b8", variants["L-b8"])
    assert new_trial.options["L-b8"].batch == 8
    assert "E" in new_trial.options


def test_each_stage_of_a_pipeline_has_the_gpus_of_a_degree():
    option = {"components": ["thinker"], "service": "llm", "gpus": 2, "vllm": {"pipeline_parallel": 2}}
    pipeline_options = experiments.choose_options(make_vl_subject(options={"L": option}, paths=[]), only=["L"])

    variants = experiments.vary_options(pipeline_options, [], [1, 2])

    assert {name: each.gpus for name, each in variants.items()} == {"L": 2, "L-tp2": 4}


def test_others_get_as_many_replicas_as_they_are_to_have():
    new_trial = experiments.with_replicas(build_trial(make_vl_subject(), "L"), {"E": 4})

    assert {name: option.replicas for name, option in new_trial.options.items()} == {"L": 1, "E": 4}


def test_an_unknown_option_is_named_with_those_that_there_are():
    with pytest.raises(BadRequest, match="m has no option X; there is E, L, EL; --all-options"):
        experiments.choose_options(make_vl_subject(), only=["X"])


def test_every_set_of_components_keeps_its_declared_name():
    declared_options = experiments.choose_options(
        make_vl_subject(options={"E": {"components": ["vision"], "service": "encoder"}}, paths=[]), every=True
    )

    assert {name: option.components for name, option in declared_options.items()} == {
        "E": ("vision",),
        "thinker": ("thinker",),
        "vision-thinker": ("vision", "thinker"),
    }
    assert {name: option.service for name, option in declared_options.items()} == {
        "E": "encoder", "thinker": "llm", "vision-thinker": "llm",
    }  # fmt: skip


def test_sets_that_would_be_visited_twice_are_left_out():
    component_sets = {
        frozenset(option.components) for option in experiments.choose_options(make_omni_subject(), every=True).values()
    }

    assert frozenset({"thinker", "vocoder"}) not in component_sets
    assert frozenset({"vision", "talker"}) not in component_sets
    assert frozenset({"vision", "audio"}) in component_sets
    assert frozenset({"audio", "thinker", "talker"}) in component_sets


def test_of_a_model_that_paints_as_well_what_chats_is_measured():
    subject = measured_model.find_subject("m", declare_model("janus"))

    assert list(experiments.choose_options(subject)) == ["E", "L", "EL"]
    assert build_trial(subject, "E").options.keys() == {"E", "L"}
    [model_plan] = declarations_file.build_static_plans(
        msgspec.convert(
            experiments.trial_declarations(subject, build_trial(subject, "EL"))["models"], dict[str, DeclaredModel]
        )
    ).values()
    assert model_plan.components == ("vision", "thinker")


def test_an_option_runs_with_what_the_rest_of_its_path_needs():
    assert build_trial(make_vl_subject(), "E").paths == (("E", "L"),)
    assert build_trial(make_omni_subject(), "Th").paths == (("Th", "EV", "EA", "Ta", "V"),)


def test_an_option_is_also_measured_after_encoders_elsewhere():
    assert build_trial(make_vl_subject(), "EL").paths == (("EL",), ("E", "EL"))
    assert build_trial(make_omni_subject(), "M").paths == (("M",), ("EV", "M"), ("EA", "M"), ("EV", "EA", "M"))


def test_roles_and_names_of_paths_are_those_of_the_plan():
    new_trial = build_trial(make_vl_subject(), "EL")

    assert new_trial.role_components(("E", "EL"), ("vision", "thinker")) == ("thinker",)
    assert new_trial.path_name(("E", "EL"), ("vision", "thinker")) == "E>EL"
    assert new_trial.path_name(("E", "EL"), ("thinker",)) == "EL"
    assert new_trial.path_name(("EL",), ("vision", "thinker")) == "EL"


@pytest.mark.parametrize(
    ("subject", "every"), [(make_vl_subject(), True), (make_omni_subject(), False), (make_omni_subject(), True)]
)
def test_the_planner_takes_every_deployment(subject, every):
    for name, option in experiments.choose_options(subject, every=every).items():
        one = experiments.make_trial(subject, name, option, other_replicas=2)
        entry = experiments.trial_declarations(subject, one)["models"]["m"]
        plan = declarations_file.build_static_plans({"m": msgspec.convert(entry, DeclaredModel)})["m"]

        assert {each: option.replicas for each, option in plan.options.items()} == {
            each: option.replicas for each, option in one.options.items()
        }
        whole = plan.types["+".join(subject.components)]
        assert {path.name for path in whole} >= {one.path_name(path, subject.components) for path in one.paths}
        assert plan.options[name].replicas == 1


def test_what_another_model_lends_is_used_and_not_measured():
    base = msgspec.json.decode(declare_model("qwen2_5_vl"))["models"]["m"]
    twin = {
        "family": "qwen2_5_vl",
        "checkpoint": "/models/t",
        "shares": {"vision": "m"},
        "options": {"L": {"components": ["thinker"], "service": "llm"}},
        "paths": [{"options": ["m/E", "L"]}],
    }
    subject = measured_model.find_subject("t", msgspec.json.encode({"models": {"m": base, "t": twin}}).decode())
    one = build_trial(subject, "L")
    entries = experiments.trial_declarations(subject, one)["models"]

    assert list(experiments.choose_options(subject, every=True)) == ["L"]
    assert one.paths == (("L", "m/E"),)
    assert one.options["m/E"] == DeploymentOption(("vision",), "", replicas=0, of="m/E")
    plan = declarations_file.build_static_plans(
        {name: msgspec.convert(entry, DeclaredModel) for name, entry in entries.items()}
    )["t"]
    assert plan.options["m/E"].of == "m/E"


def test_an_unknown_model_is_named_with_those_that_there_are():
    with pytest.raises(BadRequest, match="no model 'x' is declared; there is m"):
        measured_model.find_subject("x", declare_model("qwen2_5_vl"))


@pytest.mark.parametrize("text", ["", "[]", '{"models": []}', '{"models": {"m": 1}}', '{"models": {"m": {}}}'])
def test_declarations_that_are_none_are_said_so(text):
    with pytest.raises(BadRequest):
        measured_model.find_subject("m", text)


def test_what_the_planner_would_plan_is_deployed_by_hand():
    subject = make_vl_subject(planned={"profile": "m.json"})

    assert "planned" not in experiments.trial_declarations(subject, build_trial(subject, "E"))["models"]["m"]
