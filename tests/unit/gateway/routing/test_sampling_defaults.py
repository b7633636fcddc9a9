"""Default sampling parameters, from declarations and executors."""

from typing import Any

import msgspec
import pytest

from omnibus.bus.messages import ExecutorStatus, decode_status, encode
from omnibus.plan import DeploymentOption, ModelPlan, Plan, SamplingDefaults
from omnibus_gateway.openai.parse import parse_chat
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.sampling_defaults import NEUTRAL, ModelSampling
from omnibus_gateway.routing.sampling_defaults import DefaultSampling as SamplingCatalog
from omnibus_gateway.tasks.params import sampling_params

TAKES = ("fallback_temperature",)


def model(declared: SamplingDefaults | None = None, of: str = "") -> ModelPlan:
    options = {"L": DeploymentOption(("thinker",), "llm", of=of), "Ta": DeploymentOption(("talker",), "llm")}
    made = ModelPlan("f", "", ("thinker", "talker"), {}, options, {})
    return made if declared is None else msgspec.structs.replace(made, sampling_defaults=declared)


def status(sampling: Any, option: str = "L", name: str = "m", **more: Any) -> ExecutorStatus:
    components = {"L": ("thinker",), "Ta": ("talker",)}[option]
    usual = {"id": f"{name}-{option}", "state": "ready", "credits": 1, "node": "n", "tasks": (), "takes": TAKES}
    return ExecutorStatus(
        **{**usual, "model": name, "option": option, "components": components, **more}, sampling=sampling
    )


def catalog(*statuses: ExecutorStatus, **models: ModelPlan) -> SamplingCatalog:
    members = ExecutorTable()
    made = SamplingCatalog(members)
    made.use_plan(Plan(1, 0, 0.0, models))
    for each in statuses:
        members.handle_status(each)
    return made


def test_executors_report_what_their_checkpoint_recommends():
    found = catalog(status({"temperature": 0.6}), status({"talker_top_k": 7}, "Ta"), m=model())

    assert found.of_model("m") == ModelSampling({"temperature": 0.6, "talker_top_k": 7})


def test_whole_numbers_stay_whole_on_their_way_from_executors():
    sent = status({"temperature": 1.0, "top_k": 20, "max_tokens": 99, "talker_top_k": 7})
    arrived = decode_status(encode(sent))

    values = catalog(arrived, m=model()).of_model("m").values

    assert {name: type(value) for name, value in values.items()} == {
        "temperature": float, "top_k": int, "max_tokens": int, "talker_top_k": int,
    }  # fmt: skip


def test_what_is_declared_comes_first():
    declared = SamplingDefaults(top_p=0.5)

    found = catalog(status({"temperature": 0.6, "top_p": 0.9}), m=model(declared))

    assert found.of_model("m").values == {"temperature": 0.6, "top_p": 0.5}


def test_a_declaration_can_leave_the_checkpoint_out():
    declared = SamplingDefaults(checkpoint=False, top_k=5)

    assert catalog(status({"temperature": 0.6}), m=model(declared)).of_model("m") == ModelSampling({"top_k": 5})
    assert catalog(m=model(declared)).of_model("m").complete


def test_a_lent_language_model_recommends_for_both():
    found = catalog(status({"top_p": 0.9}, name="owner"), m=model(of="owner/L"), owner=model())

    assert found.of_model("m").values == {"top_p": 0.9}


def test_before_the_first_executor_its_checkpoint_decides():
    found = catalog(m=model())

    assert not found.of_model("m").complete

    found._members.handle_status(status({"top_p": 0.9}))
    assert found.of_model("m") == ModelSampling({"top_p": 0.9})


def test_executors_of_an_earlier_build_get_neutral_values():
    assert catalog(status(None, takes=()), m=model()).of_model("m") == ModelSampling({})
    assert catalog(m=model()).of_model("other") == NEUTRAL


def test_executors_without_a_file_are_neutral():
    assert catalog(status({}), m=model()).of_model("m") == ModelSampling({})


def ask(**more: Any) -> Any:
    return parse_chat(msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "hi"}], **more}))


@pytest.mark.parametrize(
    ("more", "usual", "sampling"),
    [
        ({}, ModelSampling(), (1.0, 1.0, 0, 1.0)),
        ({}, ModelSampling({"temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1}), (0.6, 0.9, 20, 1.1)),
        ({"temperature": 1, "top_p": 1}, ModelSampling({"temperature": 0.0, "top_p": 0.5, "top_k": 3}), (1.0, 1.0, 3, 1.0)),
        ({"temperature": 0, "top_k": -1}, ModelSampling({"temperature": 0.6, "top_k": 20}), (0.0, 1.0, 0, 1.0)),
        ({"top_k": 0, "repetition_penalty": 1}, ModelSampling({"top_k": 20, "repetition_penalty": 2.0}), (1.0, 1.0, 0, 1.0)),
    ],
)  # fmt: skip
def test_what_a_request_names_wins(more: Any, usual: ModelSampling, sampling: Any):
    made = sampling_params(ask(**more), usual)

    assert tuple(made[name] for name in ("temperature", "top_p", "top_k", "repetition_penalty")) == sampling


def test_rare_values_are_sent_where_the_model_names_them():
    usual = ModelSampling({"min_p": 0.1, "presence_penalty": 1.5, "max_tokens": 99})

    made = sampling_params(ask(presence_penalty=0), usual)

    assert (made["min_p"], made.get("presence_penalty", 0), made["usual_tokens"]) == (0.1, 0, 99)
    assert "usual_tokens" not in sampling_params(ask(max_tokens=5), usual)
    assert sampling_params(ask(max_tokens=5), usual)["max_tokens"] == 5


def test_what_is_not_known_is_left_to_the_executor():
    made = sampling_params(ask(top_p=0.5), ModelSampling({"top_k": 4}, complete=False))

    assert made == {
        "max_tokens": None, "stop": [], "ignore_eos": False, "top_p": 0.5, "top_k": 4, "fallback_temperature": 1.0,
    }  # fmt: skip
