"""Formats of ``/v1/responses/input_tokens`` and ``/compact``. Source: the types of the ``openai`` package, 3.52.

Both accept the input of ``/v1/responses``, without generating an answer.
"""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from omnibus.errors import BadRequest
from omnibus_gateway.openai.chat_request import Count
from omnibus_gateway.openai.parse import check_values, convert_json, invalid_request
from omnibus_gateway.openai.responses.items import InputItem
from omnibus_gateway.openai.responses.request import (
    PATH,
    ConversationReference,
    ReasoningConfig,
    ResponseId,
    ResponseRequest,
    ResponseToolChoice,
    ResponseTools,
    TextConfig,
    check_response_request,
    check_tool_types,
    name_message,
)
from omnibus_gateway.openai.responses.response import ResponseUsage

INPUT_TOKENS, COMPACT = f"{PATH}/input_tokens", f"{PATH}/compact"

Model = Annotated[str, Meta(min_length=1, max_length=256)]
Input = str | Annotated[list[InputItem], Meta(max_length=2048)]
Kind = TypeVar("Kind", bound="_ContextRequest")


class _ContextRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The input of an answer, in the format of responses."""

    model: Model
    input: Input | None = None
    instructions: str | None = None
    previous_response_id: ResponseId | None = None

    def to_response_request(self) -> ResponseRequest:
        """Return a request with these fields, which does not store its response."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name in _RESPONSE_FIELDS}
        return ResponseRequest(**fields, store=False)


class InputTokensRequest(_ContextRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to count tokens. ``chat_template_kwargs`` is an extra, as in chats."""

    conversation: ResponseId | ConversationReference | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None
    tools: ResponseTools | None = None
    tool_choice: ResponseToolChoice | None = None
    truncation: Literal["auto", "disabled"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompactRequest(_ContextRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation to compact. ``max_output_tokens``, the limit of the summary, and ``seed`` are extras."""

    max_output_tokens: Count | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None

    # Accepted and ignored: elsewhere they change cost or speed, never the answer.
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None


class InputTokensObject(Struct, frozen=True):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class CompactedResponse(Struct, frozen=True):
    """A compacted conversation: the user's messages, then one item that replaces all other items."""

    id: str
    created_at: int
    output: list[InputItem]
    usage: ResponseUsage
    object: Literal["response.compaction"] = "response.compaction"


_RESPONSE_FIELDS = frozenset(ResponseRequest.__struct_fields__)


def parse_context_request(body: bytes, kind: type[Kind]) -> Kind:
    """Decode and check a request. Raises ``BadRequest`` with ``param``, and ``TooLarge``."""
    check_values(body)
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest("The request body is not valid JSON in UTF-8.") from None
    if isinstance(document, dict) and isinstance(document.get("input"), list):
        document["input"] = [name_message(item) for item in document["input"]]
    check_tool_types(document)
    try:
        request = convert_json(document, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise invalid_request(str(error), kind, document) from None
    check_response_request(request.to_response_request())
    return request
