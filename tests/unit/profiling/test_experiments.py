"""The measured options, the other executors they need, and their paths."""

import msgspec
import pytest

from omnibus.errors import BadRequest
from omnibus.plan import DeploymentOption
from omnibus.profiling import experiments, measured_model
from omnibus_planner.declared import declarations_file
from omnibus_planner.declared.model import DeclaredModel
from tests.unit.profiling.subjects import declared, omni, vl


def trial(subject, name, **more):
    return experiments.make_trial(subject, name, experiments.choose_options(subject, **more)[name])


def test_declared_options_are_measured_unless_others_are_asked_for():
    assert list(experiments.choose_options(vl())) == ["E", "L", "EL"]
    assert list(experiments.choose_options(vl(), only=["L"])) == ["L"]


def test_batches_and_degrees_of_parallelism_are_further_options():
    found = experiments.vary_options(experiments.choose_options(vl()), [1, 8], [1, 2])

    assert list(found) == [
        "E", "L", "EL", "E-b1", "E-b8", "L-b1", "L-b8", "L-tp2", "EL-b1", "EL-b8", "EL-tp2",
    ]  # fmt: skip
    assert (found["L-b8"].batch, found["L-b8"].components) == (8, ("thinker",))
    assert (found["EL-tp2"].gpus, found["EL-tp2"].batch) == (2, 0)
    made = experiments.make_trial(vl(), "L-b8", found["L-b8"])
    assert made.options["L-b8"].batch == 8
    assert "E" in made.options


def test_each_stage_of_a_pipeline_has_the_gpus_of_a_degree():
    option = {"components": ["thinker"], "service": "llm", "gpus": 2, "vllm": {"pipeline_parallel": 2}}
    known = experiments.choose_options(vl(options={"L": option}, paths=[]), only=["L"])

    found = experiments.vary_options(known, [], [1, 2])

    assert {name: each.gpus for name, each in found.items()} == {"L": 2, "L-tp2": 4}


def test_others_get_as_many_replicas_as_they_are_to_have():
    found = experiments.with_replicas(trial(vl(), "L"), {"E": 4})

    assert {name: option.replicas for name, option in found.options.items()} == {"L": 1, "E": 4}


def test_an_unknown_option_is_named_with_those_that_there_are():
    with pytest.raises(BadRequest, match="m has no option X; there is E, L, EL; --all-options"):
        experiments.choose_options(vl(), only=["X"])


def test_every_set_of_components_keeps_its_declared_name():
    found = experiments.choose_options(
        vl(options={"E": {"components": ["vision"], "service": "encoder"}}, paths=[]), every=True
    )

    assert {name: option.components for name, option in found.items()} == {
        "E": ("vision",),
        "thinker": ("thinker",),
        "vision-thinker": ("vision", "thinker"),
    }
    assert {name: option.service for name, option in found.items()} == {
        "E": "encoder", "thinker": "llm", "vision-thinker": "llm",
    }  # fmt: skip


def test_sets_that_would_be_visited_twice_are_left_out():
    found = {frozenset(option.components) for option in experiments.choose_options(omni(), every=True).values()}

    assert frozenset({"thinker", "vocoder"}) not in found
    assert frozenset({"vision", "talker"}) not in found
    assert frozenset({"vision", "audio"}) in found
    assert frozenset({"audio", "thinker", "talker"}) in found


def test_of_a_model_that_paints_as_well_what_chats_is_measured():
    subject = measured_model.find_subject("m", declared("janus"))

    assert list(experiments.choose_options(subject)) == ["E", "L", "EL"]
    assert trial(subject, "E").options.keys() == {"E", "L"}
    [made] = declarations_file.build_static_plans(
        msgspec.convert(
            experiments.trial_declarations(subject, trial(subject, "EL"))["models"], dict[str, DeclaredModel]
        )
    ).values()
    assert made.components == ("vision", "thinker")


def test_an_option_runs_with_what_the_rest_of_its_path_needs():
    assert trial(vl(), "E").paths == (("E", "L"),)
    assert trial(omni(), "Th").paths == (("Th", "EV", "EA", "Ta", "V"),)


def test_an_option_is_also_measured_after_encoders_elsewhere():
    assert trial(vl(), "EL").paths == (("EL",), ("E", "EL"))
    assert trial(omni(), "M").paths == (("M",), ("EV", "M"), ("EA", "M"), ("EV", "EA", "M"))


def test_roles_and_names_of_paths_are_those_of_the_plan():
    both = trial(vl(), "EL")

    assert both.role_components(("E", "EL"), ("vision", "thinker")) == ("thinker",)
    assert both.path_name(("E", "EL"), ("vision", "thinker")) == "E>EL"
    assert both.path_name(("E", "EL"), ("thinker",)) == "EL"
    assert both.path_name(("EL",), ("vision", "thinker")) == "EL"


@pytest.mark.parametrize(("subject", "every"), [(vl(), True), (omni(), False), (omni(), True)])
def test_the_planner_takes_every_deployment(subject, every):
    for name, option in experiments.choose_options(subject, every=every).items():
        one = experiments.make_trial(subject, name, option, others=2)
        entry = experiments.trial_declarations(subject, one)["models"]["m"]
        plan = declarations_file.build_static_plans({"m": msgspec.convert(entry, DeclaredModel)})["m"]

        assert {each: option.replicas for each, option in plan.options.items()} == {
            each: option.replicas for each, option in one.options.items()
        }
        whole = plan.types["+".join(subject.components)]
        assert {path.name for path in whole} >= {one.path_name(path, subject.components) for path in one.paths}
        assert plan.options[name].replicas == 1


def test_what_another_model_lends_is_used_and_not_measured():
    base = msgspec.json.decode(declared("qwen2_5_vl"))["models"]["m"]
    twin = {
        "family": "qwen2_5_vl",
        "checkpoint": "/models/t",
        "shares": {"vision": "m"},
        "options": {"L": {"components": ["thinker"], "service": "llm"}},
        "paths": [{"options": ["m/E", "L"]}],
    }
    subject = measured_model.find_subject("t", msgspec.json.encode({"models": {"m": base, "t": twin}}).decode())
    one = trial(subject, "L")
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
        measured_model.find_subject("x", declared("qwen2_5_vl"))


@pytest.mark.parametrize("text", ["", "[]", '{"models": []}', '{"models": {"m": 1}}', '{"models": {"m": {}}}'])
def test_declarations_that_are_none_are_said_so(text):
    with pytest.raises(BadRequest):
        measured_model.find_subject("m", text)


def test_what_the_planner_would_plan_is_deployed_by_hand():
    subject = vl(planned={"profile": "m.json"})

    assert "planned" not in experiments.trial_declarations(subject, trial(subject, "E"))["models"]["m"]
