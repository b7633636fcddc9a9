"""The routes of messages in the OpenAPI document."""

from typing import Any

import msgspec

from omnibus_gateway.anthropic.wire import (
    COUNT_TOKENS,
    MESSAGES,
    CountTokensRequest,
    ErrorResponse,
    Message,
    MessageEvent,
    MessageRequest,
    MessageTokensCount,
)
from omnibus_gateway.openai.openapi_routes import FAILURES, REF, event_content, json_content, operation

_SHAPES = (MessageRequest, Message, MessageEvent, CountTokensRequest, MessageTokensCount, ErrorResponse)
_EVENTS = ("MessageStart", "ContentBlockStart", "ContentBlockDelta", "ContentBlockStop", "MessageDelta", "MessageStop")


def message_components() -> dict[str, Any]:
    """Return the schemas of messages by name, for ``components.schemas``."""
    return msgspec.json.schema_components(_SHAPES, ref_template=REF)[1]


def message_paths() -> dict[str, Any]:
    """Return the path items."""
    answer = {
        "description": "The message. With `stream`: its events.",
        "content": {**json_content("Message"), **event_content(*_EVENTS)},
    }
    count = {"description": "Number of tokens of the prompt.", "content": json_content("MessageTokensCount")}
    return {
        MESSAGES: {"post": _post("create_message", "Answer a conversation with a message.", "MessageRequest", answer)},
        COUNT_TOKENS: {
            "post": _post("count_message_tokens", "Count the tokens of a message.", "CountTokensRequest", count)
        },
    }


def _post(id: str, summary: str, body: str, answer: dict[str, Any]) -> dict[str, Any]:
    failures = {
        status: {"description": text, "content": json_content("ErrorResponse")} for status, text in FAILURES.items()
    }
    described = operation(id, summary, "Messages", {"200": answer, **failures})
    return {**described, "requestBody": {"required": True, "content": json_content(body)}}
