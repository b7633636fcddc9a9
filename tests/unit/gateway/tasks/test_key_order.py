"""Key order in the model's input is the client's.

This applies to schemas, tools, and arguments of earlier calls.
"""

import json
from typing import Any

import msgspec
import pytest

from omnibus.graph import call_digest, encode_input
from omnibus_gateway.openai.messages import convert_messages
from omnibus_gateway.openai.parse import parse_chat
from omnibus_gateway.request.inputs import salt_params
from omnibus_gateway.tasks.prepared_chat import PreparedChat

FLAG = {"type": "boolean"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"reasoning": FLAG, "answer": {"type": "object", "properties": {"z": FLAG, "a": FLAG}}},
    "required": ["reasoning", "answer"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells.", "parameters": SCHEMA}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"z": 1, "a": {"y": 2, "b": 3}}'}}
CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
]


def prepare_chat(messages: list[dict[str, Any]] | None = None, **more: Any) -> PreparedChat:
    body = {"model": "m", "messages": messages or CALLED[:1], **more}
    request = parse_chat(json.dumps(body).encode())
    chat_messages, _ = convert_messages(request)
    return PreparedChat(request, chat_messages, [])


def as_text(value: Any) -> str:
    """Return ``value`` as text with its order of keys."""
    return json.dumps(value)


@pytest.mark.parametrize("salt", ["", "tenant"])
def test_properties_stay_in_the_order_of_the_schema(salt: str) -> None:
    chat = prepare_chat(response_format=FORMAT, n=2)
    chat.use_adapter("style")

    for params in (chat.params, *chat.choices):
        document = json.loads(salt_params(params, salt))
        assert as_text(document["structured_outputs"]) == as_text({"json": SCHEMA})


def test_tools_and_variables_of_the_template_stay_in_their_order() -> None:
    document = json.loads(prepare_chat(tools=[TOOL], chat_template_kwargs={"z": {"y": 1, "b": 2}, "a": 3}).params)

    assert as_text(document["tools"][0]["function"]["parameters"]) == as_text(SCHEMA)
    assert as_text(document["template"]) == as_text({"z": {"y": 1, "b": 2}, "a": 3})


def test_arguments_of_earlier_calls_stay_in_their_order() -> None:
    [_, assistant, _] = json.loads(prepare_chat(CALLED, tools=[TOOL]).body)

    [call] = assistant["tool_calls"]
    assert as_text(call["function"]["arguments"]) == '{"z": 1, "a": {"y": 2, "b": 3}}'


@pytest.mark.parametrize("more", [{}, {"response_format": FORMAT}, {"tools": [TOOL], "messages": CALLED}])
def test_a_call_has_the_same_digest_before_and_after_it_was_a_document(more: dict[str, Any]) -> None:
    chat = prepare_chat(**more)
    inputs = {"messages": chat.input.messages, "params": chat.input.params}
    read = msgspec.json.decode(msgspec.json.encode(inputs))

    assert call_digest("think-m", inputs) == call_digest("think-m", read)


def test_what_a_client_did_not_order_is_in_one_order() -> None:
    assert encode_input({"top_p": 1.0, "max_tokens": 2}) == encode_input({"max_tokens": 2, "top_p": 1.0})
    assert encode_input([{"role": "user", "content": "x"}]) == encode_input([{"content": "x", "role": "user"}])
