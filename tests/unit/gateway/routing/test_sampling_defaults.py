"""Default sampling parameters, from declarations and executors."""

from typing import Any

import msgspec
import pytest

from omnibus.bus.messages import ExecutorStatus, decode_status, encode
from omnibus.model_defaults import SamplingDefaults
from omnibus.plan import DeploymentOption, ModelPlan, Plan
from omnibus_gateway.openai.parse import parse_chat
from omnibus_gateway.routing.assignment import NEUTRAL, ModelSampling
from omnibus_gateway.routing.assignment import DefaultSampling as SamplingCatalog
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.tasks.prepared_chat import sampling_params

TAKES = ("fallback_temperature",)


def make_model(defaults: SamplingDefaults | None = None, of: str = "") -> ModelPlan:
    options = {"L": DeploymentOption(("thinker",), "llm", of=of), "Ta": DeploymentOption(("talker",), "llm")}
    model_plan = ModelPlan("f", "", ("thinker", "talker"), {}, options, {})
    return model_plan if defaults is None else msgspec.structs.replace(model_plan, sampling_defaults=defaults)


def make_status(sampling: Any, option: str = "L", name: str = "m", **more: Any) -> ExecutorStatus:
    components = {"L": ("thinker",), "Ta": ("talker",)}[option]
    usual = {"id": f"{name}-{option}", "state": "ready", "credits": 1, "node": "n", "tasks": (), "takes": TAKES}
    return ExecutorStatus(
        **{**usual, "model": name, "option": option, "components": components, **more}, sampling=sampling
    )


def make_catalog(*statuses: ExecutorStatus, **models: ModelPlan) -> SamplingCatalog:
    members = ExecutorTable()
    sampling_catalog = SamplingCatalog(members)
    sampling_catalog.use_plan(Plan(1, 0, 0.0, models))
    for each in statuses:
        members.handle_status(each)
    return sampling_catalog


def test_executors_report_what_their_checkpoint_recommends():
    sampling_catalog = make_catalog(
        make_status({"temperature": 0.6}), make_status({"talker_top_k": 7}, "Ta"), m=make_model()
    )

    assert sampling_catalog.of_model("m") == ModelSampling({"temperature": 0.6, "talker_top_k": 7})


def test_whole_numbers_stay_whole_on_their_way_from_executors():
    original_status = make_status({"temperature": 1.0, "top_k": 20, "max_tokens": 99, "talker_top_k": 7})
    decoded_status = decode_status(encode(original_status))

    values = make_catalog(decoded_status, m=make_model()).of_model("m").values

    assert {name: type(value) for name, value in values.items()} == {
        "temperature": float, "top_k": int, "max_tokens": int, "talker_top_k": int,
    }  # fmt: skip


def test_what_is_declared_comes_first():
    defaults = SamplingDefaults(top_p=0.5)

    sampling_catalog = make_catalog(make_status({"temperature": 0.6, "top_p": 0.9}), m=make_model(defaults))

    assert sampling_catalog.of_model("m").values == {"temperature": 0.6, "top_p": 0.5}


def test_a_declaration_can_leave_the_checkpoint_out():
    defaults = SamplingDefaults(checkpoint=False, top_k=5)

    assert make_catalog(make_status({"temperature": 0.6}), m=make_model(defaults)).of_model("m") == ModelSampling(
        {"top_k": 5}
    )
    assert make_catalog(m=make_model(defaults)).of_model("m").complete


def test_a_lent_language_model_recommends_for_both():
    sampling_catalog = make_catalog(
        make_status({"top_p": 0.9}, name="owner"), m=make_model(of="owner/L"), owner=make_model()
    )

    assert sampling_catalog.of_model("m").values == {"top_p": 0.9}


def test_before_the_first_executor_its_checkpoint_decides():
    sampling_catalog = make_catalog(m=make_model())

    assert not sampling_catalog.of_model("m").complete

    sampling_catalog._members.handle_status(make_status({"top_p": 0.9}))
    assert sampling_catalog.of_model("m") == ModelSampling({"top_p": 0.9})


def test_executors_of_an_earlier_build_get_neutral_values():
    assert make_catalog(make_status(None, takes=()), m=make_model()).of_model("m") == ModelSampling({})
    assert make_catalog(m=make_model()).of_model("other") == NEUTRAL


def test_executors_without_a_file_are_neutral():
    assert make_catalog(make_status({}), m=make_model()).of_model("m") == ModelSampling({})


def parse_request(**more: Any) -> Any:
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
    params = sampling_params(parse_request(**more), usual)

    assert tuple(params[name] for name in ("temperature", "top_p", "top_k", "repetition_penalty")) == sampling


def test_rare_values_are_sent_where_the_model_names_them():
    usual = ModelSampling({"min_p": 0.1, "presence_penalty": 1.5, "max_tokens": 99})

    params = sampling_params(parse_request(presence_penalty=0), usual)

    assert (params["min_p"], params.get("presence_penalty", 0), params["usual_tokens"]) == (0.1, 0, 99)
    assert "usual_tokens" not in sampling_params(parse_request(max_tokens=5), usual)
    assert sampling_params(parse_request(max_tokens=5), usual)["max_tokens"] == 5


def test_what_is_not_known_is_left_to_the_executor():
    params = sampling_params(parse_request(top_p=0.5), ModelSampling({"top_k": 4}, complete=False))

    assert params == {
        "max_tokens": None, "stop": [], "ignore_eos": False, "top_p": 0.5, "top_k": 4, "fallback_temperature": 1.0,
    }  # fmt: skip
