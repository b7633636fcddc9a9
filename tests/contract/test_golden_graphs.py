"""Today's plan and tasks make the same graphs from recorded requests.

Names and inputs of calls are unchanged.
"""

import msgspec
import pytest

from omnibus import graph
from omnibus.families import catalog
from omnibus.graph import Invocation
from omnibus.plan import Plan
from omnibus.task import ChatInput, record
from omnibus_gateway.tasks.resolve import create_chat_task
from omnibus_planner.declared import declarations_file
from omnibus_planner.declared.declarations_file import Declarations
from tests.golden import corpus

#: Documents that hold all of their request.
FULL = {name: body for name, body in corpus.read_invocations().items() if b'"$digest"' not in body}

each_body = pytest.mark.parametrize("body", FULL.values(), ids=FULL.keys())


@pytest.fixture(scope="module")
def plan() -> Plan:
    """The default deployment of the tiny models."""
    model_declarations = {name: catalog.model_declaration(family, "/tiny") for name, family in catalog.TINY.items()}
    models = declarations_file.build_static_plans(msgspec.convert({"models": model_declarations}, Declarations).models)
    return Plan(epoch=1, seed=0, created=0.0, models=models)


def build_request(invocation: Invocation) -> ChatInput:
    """The chat that ``invocation`` answers."""
    inputs = {node.component: node.inputs for node in invocation.nodes}
    media = tuple(node.inputs["media"] for node in invocation.nodes if "media" in node.inputs)
    thinker = inputs["thinker"]
    return ChatInput(
        messages=thinker["messages"],
        media=media,
        modalities=tuple(literal["modality"] for literal in media),
        params=thinker["params"],
        voice=thinker.get("voice", ""),
        speech=inputs["talker"]["params"] if "talker" in inputs else None,
    )


@each_body
def test_the_same_chat_makes_the_same_calls_as_when_it_was_recorded(plan: Plan, body: bytes):
    then = graph.decode_invocation(body)

    now = record(create_chat_task(then.model, plan).invoke, build_request(then))

    assert [node.task for node in now.nodes] == [node.task for node in then.nodes]
    assert [node.component for node in now.nodes] == [node.component for node in then.nodes]
    assert [node.inputs for node in now.nodes] == [node.inputs for node in then.nodes]
    assert [node.digest for node in now.nodes] == [node.digest for node in then.nodes]
    assert [node.uses for node in now.nodes] == [node.uses for node in then.nodes]
    assert now.outputs == then.outputs


@each_body
def test_a_call_that_names_no_model_and_no_salt_is_the_one_that_is_made_today(plan: Plan, body: bytes):
    then = graph.decode_invocation(body)

    now = record(create_chat_task(then.model, plan).invoke, build_request(then))

    assert [node.model for node in now.nodes] == [node.model or then.model for node in then.nodes]
    assert [node.salt for node in now.nodes] == [node.salt for node in then.nodes]


@each_body
def test_a_recorded_call_is_one_of_the_plans_tasks_and_its_path_is_planned(plan: Plan, body: bytes):
    then = graph.decode_invocation(body)
    model = plan.models[then.model]
    paths = {path.name: path for path in model.types[then.type]}

    assert [model.tasks[node.component] for node in then.nodes] == [node.task for node in then.nodes]
    assert tuple(paths[then.path].options[node.component] for node in then.nodes) == then.options
