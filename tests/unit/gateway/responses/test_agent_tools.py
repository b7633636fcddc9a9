"""Tools of agents in responses: free text, shells, patches, groups of functions, and hints of refusals."""

import json
from typing import Any

import pytest

from omnibus.structured.calls import call_head
from omnibus_gateway.openai.responses.tools import read_input, write_input
from tests.unit.gateway.anthropic.conftest import Opener
from tests.unit.gateway.anthropic.thinkers import RecordingThinker
from tests.unit.gateway.house import TEXT, ToyGateway
from tests.unit.gateway.responses_house import PATH, events_of, post_response, read_response_body

CUSTOM = {"type": "custom", "name": "write", "description": "Write text."}
REGEX = {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}


def make_caller(name: str, arguments: str, pieces: int = 3) -> RecordingThinker:
    """Return a thinker that calls ``name``, with its arguments in pieces."""
    size = max(1, len(arguments) // pieces)
    parts = [arguments[begin : begin + size] for begin in range(0, len(arguments), size)]
    return RecordingThinker({"calls": call_head(name)}, *({"calls": part} for part in parts))


async def answer_once(opener: Opener, thinker: RecordingThinker, *tools: Any, **more: Any) -> dict[str, Any]:
    async with opener(thinker) as gateway:
        return read_response_body(await post_response(gateway, tools=[*tools], store=False, **more))


async def test_a_call_of_a_custom_tool_has_free_text(open_gateway: Opener):
    thinker = make_caller("write", json.dumps({"input": 'a "b"\n\u00e9\U0001f600'}))

    response = await answer_once(open_gateway, thinker, CUSTOM)

    [call] = response["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "write", 'a "b"\n\u00e9\U0001f600')
    assert call["id"].startswith("ctc_")
    assert call["call_id"]
    function = thinker.params["tools"][0]["function"]
    assert function["parameters"]["properties"] == {"input": {"type": "string"}}
    assert response["tools"][0]["name"] == "write"


async def test_the_text_of_a_custom_call_is_streamed(open_gateway: Opener):
    thinker = make_caller("write", json.dumps({"input": "one\ntwo \U0001f600 three"}), 40)
    async with open_gateway(thinker) as gateway:
        events = events_of((await post_response(gateway, tools=[CUSTOM], store=False, stream=True)).text)

    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    [done_event] = [event for event in events if event["type"] == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == done_event["input"] == "one\ntwo \U0001f600 three"
    assert len(deltas) > 5
    [first_item] = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert (first_item["type"], first_item["input"]) == ("custom_tool_call", "")
    assert not [event for event in events if "function_call_arguments" in event["type"]]


@pytest.mark.parametrize("arguments", ["plain text", '{"text": 3}', "[1]"])
async def test_arguments_without_the_text_are_the_text(open_gateway: Opener, arguments: str):
    response = await answer_once(open_gateway, make_caller("write", arguments), CUSTOM)

    assert response["output"][0]["input"] == arguments


CALLS: list[tuple[dict[str, Any], str, dict[str, Any], dict[str, Any]]] = [
    (
        {"type": "local_shell"},
        "local_shell",
        {"command": ["ls", "-l"], "working_directory": "/tmp", "timeout_ms": 5},
        {
            "type": "local_shell_call",
            "action": {
                "type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": 5, "user": None,
                "working_directory": "/tmp",
            },
        },
    ),
    (
        {"type": "shell", "environment": {"type": "local"}},
        "shell",
        {"commands": ["ls"], "timeout_ms": 9},
        {"type": "shell_call", "action": {"commands": ["ls"], "timeout_ms": 9, "max_output_length": None}},
    ),
    (
        {"type": "apply_patch"},
        "apply_patch",
        {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b\n"},
        {"type": "apply_patch_call", "operation": {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b\n"}},
    ),
    (
        {"type": "apply_patch"},
        "apply_patch",
        {"type": "delete_file", "path": "a.py", "diff": ""},
        {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a.py"}},
    ),
    (
        {"type": "namespace", "name": "files", "description": "d", "tools": [{"type": "function", "name": "open"}]},
        "files.open",
        {"path": "a"},
        {"type": "function_call", "namespace": "files", "name": "open", "arguments": '{"path": "a"}'},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "name", "arguments", "item"), CALLS)
async def test_calls_become_the_items_that_agents_read_and_go_back(
    open_gateway: Opener, tool: dict[str, Any], name: str, arguments: dict[str, Any], item: dict[str, Any]
):
    thinker = make_caller(name, json.dumps(arguments))
    response = await answer_once(open_gateway, thinker, tool)
    [call] = response["output"]

    tool_names = [each["function"]["name"] for each in thinker.params["tools"]]
    await answer_once(open_gateway, thinker, tool, input=[{"role": "user", "content": "a"}, call])

    assert {key: call.get(key) for key in item} == item
    assert (call["status"], tool_names) == ("completed", [name])
    [history_call] = thinker.messages[-1]["tool_calls"]
    assert history_call["function"]["name"] == name
    assert history_call["function"]["arguments"] == arguments


OUTPUTS: list[tuple[dict[str, Any], str]] = [
    ({"type": "custom_tool_call_output", "call_id": "c", "output": "fine"}, "fine"),
    ({"type": "local_shell_call_output", "call_id": "c", "output": "fine"}, "fine"),
    ({"type": "local_shell_call_output", "id": "c", "output": "fine"}, "fine"),
    ({"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": "no file"}, "failed: no file"),
    ({"type": "apply_patch_call_output", "call_id": "c", "status": "completed"}, "completed"),
    (
        {
            "type": "shell_call_output", "call_id": "c",
            "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
        '[{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("output", "text"), OUTPUTS)
async def test_results_go_back_as_messages_of_tools(open_gateway: Opener, output: dict[str, Any], text: str):
    thinker = RecordingThinker()
    call = {"type": "custom_tool_call", "call_id": "c", "name": "write", "input": "a"}

    await answer_once(open_gateway, thinker, input=[{"role": "user", "content": "a"}, call, output])

    *_, assistant, result = thinker.messages
    assert assistant["tool_calls"][0]["function"]["arguments"] == {"input": "a"}
    assert (result["role"], result["content"]) == ("tool", text)


async def test_calls_are_stored_and_continued(home: ToyGateway):
    call = {"type": "custom_tool_call", "call_id": "c", "name": "write", "input": "a"}
    result = {"type": "custom_tool_call_output", "call_id": "c", "output": "done"}
    first = read_response_body(await post_response(home, [{"role": "user", "content": "one"}, call, result]))

    items = (await home.http.get(f"{PATH}/{first['id']}/input_items")).json()["data"]
    second = read_response_body(await post_response(home, "two", previous_response_id=first["id"]))

    assert [item["type"] for item in items] == ["custom_tool_call_output", "custom_tool_call", "message"]
    assert items[1]["id"].startswith("ctc_")
    assert second["status"] == "completed"


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "custom", "name": "write"}, "write"),
        ({"type": "shell"}, "shell"),
        ({"type": "apply_patch"}, "apply_patch"),
    ],
)
async def test_a_tool_can_be_required(open_gateway: Opener, choice: dict[str, Any], name: str):
    thinker = RecordingThinker()

    tools = [{**CUSTOM, "format": REGEX}, {"type": "shell"}, {"type": "apply_patch"}]
    await answer_once(open_gateway, thinker, *tools, tool_choice=choice)

    assert (thinker.params["tool_choice"], thinker.params["allowed_tools"]) == ("required", [name])
    parameters = thinker.params["tools"][0]["function"]["parameters"]
    assert parameters["properties"]["input"]["pattern"] == "^(?:[a-z]+)$"


@pytest.mark.parametrize(
    ("fields", "param", "hint"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "web_search = "),
        ({"tools": [CUSTOM, {"type": "web_search_preview"}]}, "tools[1].type", "function that searches"),
        ({"tools": [{"type": "mcp", "server_label": "a"}]}, "tools[0].type", "MCP server"),
        ({"tools": [{"type": "code_interpreter"}]}, "tools[0].type", "run in the client"),
        ({"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]}, "tools[0].environment", "local"),
        ({"tools": [{**CUSTOM, "format": REGEX}]}, "tools[0].format", "only to required calls"),
        (
            {"tools": [{**CUSTOM, "format": {**REGEX, "syntax": "lark"}}], "tool_choice": "required"},
            "tools[0].format",
            "use the syntax regex",
        ),
        (
            {"tools": [{**CUSTOM, "format": {**REGEX, "definition": "("}}], "tool_choice": "required"},
            "tools[0].format.definition",
            "regular expression is invalid",
        ),
        ({"tools": [CUSTOM, {"type": "function", "name": "write"}]}, "tools[1].name", "rename"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "send their text as instructions"),
        ({"include": ["web_search_call.results"]}, "include", "reasoning.encrypted_content"),
        ({"input": [{"type": "local_shell_call_output", "output": "a"}]}, "input[0].call_id", "Missing"),
    ],
)
async def test_what_is_not_there_is_refused_with_a_hint(
    home: ToyGateway, fields: dict[str, Any], param: str, hint: str
):
    response = await home.http.post(PATH, json={"model": TEXT, "input": "a", **fields})

    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert hint in error["message"]


async def test_verbosity_truncation_and_facts_of_clients_are_passed_on(open_gateway: Opener):
    thinker = RecordingThinker()

    response = await answer_once(
        open_gateway,
        thinker,
        text={"verbosity": "low"},
        truncation="auto",
        parallel_tool_calls=False,
        client_metadata={"turn": "1"},
        include=["reasoning.encrypted_content"],
    )

    assert (response["text"]["verbosity"], response["truncation"]) == ("low", "auto")
    assert response["parallel_tool_calls"] is False
    assert thinker.params["template"] == {"verbosity": "low"}
    assert thinker.params["drop_history"] is True


@pytest.mark.parametrize("text", ["", "a", 'a"b', "a\\u00e9", "tab\t", "\U0001f600" * 3])
def test_every_beginning_of_a_call_has_a_beginning_of_its_text(text: str):
    for arguments in (write_input(text), json.dumps({"input": text})):
        head = arguments.index(":") + 3
        known_texts = [read_input(arguments[:end]) for end in range(head, len(arguments) + 1)]

        assert all(text.startswith(each) for each in known_texts)
        assert known_texts[-1] == text
