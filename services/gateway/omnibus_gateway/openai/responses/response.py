"""The response object and lists of items.

The response object has all keys that OpenAI's client and Open Responses expect.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from msgspec import Struct

from omnibus.errors import OmnibusError, Overloaded, Rejected, Unauthorized
from omnibus_gateway.openai.chat_response import Usage
from omnibus_gateway.openai.responses.items import FlatFunctionTool, OutputItem
from omnibus_gateway.openai.responses.request import ReasoningConfig, ResponseRequest
from omnibus_gateway.openai.responses.tools import ResponseTool

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputTokensDetails(Struct, frozen=True):
    """Input tokens by kind. ``text_tokens``, ``image_tokens`` (video included) and ``audio_tokens`` are extras."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0
    text_tokens: int = 0
    image_tokens: int = 0
    audio_tokens: int = 0


class OutputTokensDetails(Struct, frozen=True):
    """Output tokens by kind. ``text_tokens`` and ``audio_tokens`` are extras."""

    reasoning_tokens: int = 0
    text_tokens: int = 0
    audio_tokens: int = 0


class ResponseUsage(Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseFault(Struct, frozen=True):
    """The error of a failed response. ``code`` is one of OpenAI's; ``reason`` is the error code of other routes."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str
    reason: str = ""


class IncompleteDetails(Struct, frozen=True):
    reason: Literal["max_output_tokens", "content_filter"]


class ConversationId(Struct, frozen=True):
    id: str


class ResponseObject(Struct, frozen=True, kw_only=True):
    """A response. Fields that the client did not set have their defaults."""

    id: str
    created_at: int
    model: str
    status: ResponseStatus
    output: list[OutputItem] = []
    object: Literal["response"] = "response"
    completed_at: int | None = None
    incomplete_details: IncompleteDetails | None = None
    error: ResponseFault | None = None
    previous_response_id: str | None = None
    conversation: ConversationId | None = None
    instructions: str | None = None
    tools: list[Any] = []
    tool_choice: Any = "auto"
    truncation: Literal["auto", "disabled"] = "disabled"
    parallel_tool_calls: bool = True
    text: dict[str, Any] = {}
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_logprobs: int = 0
    temperature: float = 1.0
    reasoning: dict[str, str | None] = msgspec.field(default_factory=lambda: {"effort": None, "summary": None})
    user: str | None = None
    usage: ResponseUsage | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    store: bool = True
    background: bool = False
    service_tier: str = "default"
    metadata: dict[str, str] = {}
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def is_over(self) -> bool:
        return self.status not in ("queued", "in_progress")


class ResponseDeleted(Struct, frozen=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class ItemList(Struct, frozen=True):
    """A list of items. ``first_id`` and ``last_id`` are empty in an empty list."""

    data: list[Any]
    first_id: str
    last_id: str
    has_more: bool
    object: Literal["list"] = "list"


_encode = msgspec.json.Encoder().encode
decode_response = msgspec.json.Decoder(ResponseObject).decode


def encode_response(response: ResponseObject) -> bytes:
    """Encode a response as one line of JSON."""
    return _encode(response)


def new_response(
    id: str, creation_time: float, request: ResponseRequest, usual: Mapping[str, float] = MappingProxyType({})
) -> ResponseObject:
    """Return the empty response to ``request``. ``usual`` has the defaults of its sampling fields."""
    reasoning = request.reasoning or ReasoningConfig()
    return ResponseObject(
        id=id,
        created_at=int(creation_time),
        model=request.model,
        status="queued" if request.background else "in_progress",
        previous_response_id=request.previous_response_id,
        conversation=ConversationId(request.conversation_id) if request.conversation_id else None,
        instructions=request.instructions,
        tools=[_whole_tool(tool) for tool in request.tools or ()],
        tool_choice=request.tool_choice or "auto",
        parallel_tool_calls=request.parallel_tool_calls is not False,
        text={"format": (request.text and request.text.format) or {"type": "text"}, "verbosity": request.verbosity},
        truncation=request.truncation or "disabled",
        presence_penalty=_value_or(request.presence_penalty, usual.get("presence_penalty", 0.0)),
        frequency_penalty=_value_or(request.frequency_penalty, usual.get("frequency_penalty", 0.0)),
        top_p=_value_or(request.top_p, usual.get("top_p", 1.0)),
        temperature=_value_or(request.temperature, usual.get("temperature", 1.0)),
        reasoning={"effort": reasoning.effort, "summary": reasoning.summary},
        user=request.user,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        store=request.is_stored,
        background=bool(request.background),
        metadata=request.metadata or {},
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
    )


def _value_or(value: float | None, usual: float) -> float:
    return usual if value is None else value


def _whole_tool(tool: ResponseTool) -> dict[str, Any]:
    """Return ``tool`` with all the keys that a response has."""
    if not isinstance(tool, FlatFunctionTool):
        return {name: value for name, value in msgspec.to_builtins(tool).items() if value is not None}
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }


def failed_response(response: ResponseObject, error: OmnibusError) -> ResponseObject:
    """Return ``response`` with the status failed and the fault of ``error``."""
    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"] = "server_error"
    if isinstance(error, Rejected) and not isinstance(error, Unauthorized):  # the prompt is not at fault
        code = "invalid_prompt"
    elif isinstance(error, Overloaded):
        code = "rate_limit_exceeded"
    fault = ResponseFault(code, error.message, error.code)
    return msgspec.structs.replace(response, status="failed", error=fault)


def response_usage(usage: Usage) -> ResponseUsage:
    """Convert the usage of a chat's answer to that of a response."""
    prompt_details, answer_details = usage.prompt_tokens_details, usage.completion_tokens_details
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(
            cached_tokens=prompt_details.cached_tokens,
            text_tokens=prompt_details.text_tokens,
            image_tokens=prompt_details.image_tokens,
            audio_tokens=prompt_details.audio_tokens,
        ),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(
            answer_details.reasoning_tokens, answer_details.text_tokens, answer_details.audio_tokens
        ),
        total_tokens=usage.total_tokens,
    )
