"""The chat route for the OpenAPI document, from the same structs that read and write it."""

from typing import Any

import msgspec

from services.gateway.openai.answers import ChatCompletion
from services.gateway.openai.problems import ErrorBody
from services.gateway.openai.schema import ChatRequest
from services.gateway.openai.stream import ChatCompletionChunk

PATH = "/v1/chat/completions"

_REF = "#/components/schemas/{name}"
_FAILURES = {
    "400": "The request or one of its media items cannot be used; `param` names the place.",
    "401": "The API key is missing or unknown.",
    "404": "The model is unknown.",
    "413": "A limit on bytes, pixels, seconds or items is exceeded.",
    "429": "Overloaded: try again after Retry-After seconds.",
    "502": "A stage failed on this request; `stage` names it.",
    "503": "No live executor for a stage.",
    "504": "The deadline passed.",
}


def openapi_components() -> dict[str, Any]:
    """The schemas of request, answer, stream chunk and error, by name, for ``components.schemas``."""
    _, components = msgspec.json.schema_components(
        [ChatRequest, ChatCompletion, ChatCompletionChunk, ErrorBody], ref_template=_REF
    )
    return dict(components)


def openapi_path() -> dict[str, Any]:
    """The path item of ``PATH``."""
    request = {"required": True, "content": {"application/json": {"schema": _ref("ChatRequest")}}}
    return {
        "post": {
            "operationId": "create_chat_completion",
            "summary": "Answer a conversation with text, sound or both.",
            "tags": ["Chat"],
            "requestBody": request,
            "responses": {"200": _answer(), **{status: _failure(text) for status, text in _FAILURES.items()}},
        }
    }


def _answer() -> dict[str, Any]:
    return {
        "description": "The answer; with `stream`, server-sent events that each hold one chunk, then `[DONE]`.",
        "content": {
            "application/json": {"schema": _ref("ChatCompletion")},
            "text/event-stream": {"schema": _ref("ChatCompletionChunk")},
        },
    }


def _failure(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _ref("ErrorBody")}}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": _REF.format(name=name)}
