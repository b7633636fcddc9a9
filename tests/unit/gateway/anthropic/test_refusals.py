"""Requests that are refused: the error names the field, in Anthropic's format."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from omnibus import errors
from omnibus.errors import OmnibusError
from omnibus.executor.runner import Job
from omnibus_gateway.anthropic.errors import MessagesDialect
from omnibus_gateway.openai.errors import error_body
from tests.unit.gateway.anthropic.conftest import Opener
from tests.unit.gateway.anthropic.house import (
    PATH,
    build_message_body,
    post_message,
    read_message_error,
    read_message_events,
)
from tests.unit.gateway.anthropic.thinkers import RecordingThinker
from tests.unit.gateway.house import TEXT, ToyGateway, start_toy_gateway

PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
TOOL = {"name": "f", "input_schema": {"type": "object"}}


def of_user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def of_assistant(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": list(blocks)}]}


#: Fields that replace those of a valid request, and the beginning of the error's message.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"colour": "blue"}, "colour: Unrecognized request argument"),
    ({"thinking": {"type": "adaptive", "depth": 1}}, "thinking.depth: Unrecognized"),
    (of_user({"type": "text", "text": "a", "bold": True}), "messages[0].content[0].bold: Unrecognized"),
    ({"tools": [{**TOOL, "colour": 1}]}, "tools[0].colour: Unrecognized"),
    ({"max_tokens": None}, "max_tokens: "),
    ({"max_tokens": 0}, "max_tokens: "),
    ({"messages": []}, "messages: "),
    ({"temperature": 3}, "temperature: "),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role: "),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type: Tools of type"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type: Tools of type"),
    ({"mcp_servers": [{"type": "url", "url": "https://x", "name": "x"}]}, "mcp_servers: "),
    ({"container": "container_1"}, "container: "),
    ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management.edits[0].type: "),
    (of_user({"type": "document", "source": PDF}), "messages[0].content[0].source: PDFs"),
    (of_user({"type": "document", "source": {"type": "url", "url": "https://x"}}), "messages[0].content[0].source: "),
    (of_user({"type": "document", "source": {"type": "file", "file_id": "f"}}), "messages[0].content[0].source: "),
    (of_user({"type": "server_tool_use", "id": "1"}), "messages[0].content[0].type: Invalid request"),
    (of_user(CALL), "messages[0].content[0].type: A block of type 'tool_use'"),
    (of_assistant({"type": "image", "source": PDF}), "messages[1].content[0].type: A block of type 'image'"),
    (of_user({"type": "tool_result", "tool_use_id": "x"}), "messages[0].content[0].tool_use_id: Unknown"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name: Two tools"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice: Unknown tool"),
    ({"tool_choice": {"type": "any"}}, "tool_choice: "),
    ({"messages": [{"role": "system", "content": [{"type": "thinking", "thinking": ""}]}]}, "messages[0].content[0]"),
]


@pytest.mark.parametrize(("more", "message"), REFUSED)
async def test_what_is_not_supported_is_refused_by_name(home: ToyGateway, more: dict[str, Any], message: str):
    body = {name: value for name, value in build_message_body(**more).items() if value is not None}
    response = await home.http.post(PATH, json=body)

    error = read_message_error(response)
    assert response.status_code == 400, error
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(message), error


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"7", b'{"model": "\xff"}', b"[" * 100_000])
async def test_other_bodies_are_refused(home: ToyGateway, body: bytes):
    response = await home.http.post(PATH, content=body)

    assert response.status_code == 400
    assert read_message_error(response)["type"] == "invalid_request_error"


async def test_an_unknown_model_is_not_found(home: ToyGateway):
    response = await post_message(home, model="claude-sonnet")

    assert response.status_code == 404
    assert read_message_error(response)["type"] == "not_found_error"


async def test_without_executors_the_gateway_is_overloaded(tmp_path: Path):
    async with start_toy_gateway(tmp_path, deadline=0.5) as gateway:
        gateway.serve(TEXT)
        response = await post_message(gateway)

    assert response.status_code in (503, 504)
    assert read_message_error(response)["type"] in ("overloaded_error", "timeout_error")


async def test_a_body_over_the_limit_is_too_large(tmp_path: Path):
    async with start_toy_gateway(tmp_path, max_body=1000) as gateway:
        response = await post_message(gateway, "x" * 1000)

    assert response.status_code == 413
    assert read_message_error(response)["type"] == "request_too_large"


async def test_other_methods_and_paths_have_the_same_errors(home: ToyGateway):
    wrong_method = await home.http.get(PATH)
    wrong_path = await home.http.get(f"{PATH}/batches")

    assert wrong_method.status_code == 405
    assert wrong_method.json()["error"]["type"] == "invalid_request_error"
    assert wrong_path.status_code == 404
    assert wrong_path.json()["error"]["type"] == "not_found_error"
    assert "messages" in wrong_path.json()["error"]["message"]


TYPES: list[tuple[OmnibusError, str]] = [
    (errors.BadRequest("x"), "invalid_request_error"),
    (errors.ContextTooLong("x"), "invalid_request_error"),
    (errors.BadInput("x"), "invalid_request_error"),
    (errors.Unauthorized("x"), "authentication_error"),
    (errors.CostLimitExceeded("x"), "billing_error"),
    (errors.Forbidden("x"), "permission_error"),
    (errors.NotFound("x"), "not_found_error"),
    (errors.Conflict("x"), "conflict_error"),
    (errors.TooLarge("x"), "request_too_large"),
    (errors.HeadTooLarge("x"), "request_too_large"),
    (errors.TooSlow("x"), "timeout_error"),
    (errors.Overloaded("x"), "rate_limit_error"),
    (errors.StageUnavailable("x"), "overloaded_error"),
    (errors.GatewayStopping("x"), "overloaded_error"),
    (errors.StorageFull("x"), "api_error"),
    (errors.Fatal("x"), "api_error"),
    (errors.StageFailed("x"), "api_error"),
    (errors.DeadlineExceeded("x"), "timeout_error"),
]


@pytest.mark.parametrize(("error", "type"), TYPES, ids=[error.code for error, _ in TYPES])
@pytest.mark.parametrize("in_stream", [False, True])
def test_every_error_has_a_type(error: OmnibusError, type: str, in_stream: bool):
    body = httpx.Response(
        200, content=MessagesDialect().convert_error(error_body(error, "r"), 0 if in_stream else error.status)
    ).json()

    assert body == {"type": "error", "error": {"type": type, "message": "x"}, "request_id": "r"}


class FailingThinker(RecordingThinker):
    """A thinker that fails after its first word."""

    async def __call__(self, job: Job) -> None:
        await job.send("text", {"text": "one ", "ids": [0]})
        raise errors.Fatal("the engine broke")


async def test_an_error_after_the_first_byte_is_an_event(open_gateway: Opener):
    async with open_gateway(FailingThinker()) as gateway:
        response = await post_message(gateway, stream=True)

    assert response.status_code == 200
    events = read_message_events(response.text)
    assert [event["type"] for event in events][:3] == ["message_start", "content_block_start", "content_block_delta"]
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "api_error"
    assert events[-1]["request_id"] == response.headers["request-id"]
