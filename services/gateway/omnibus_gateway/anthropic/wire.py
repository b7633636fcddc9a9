"""Formats of ``/v1/messages``. Source: the types of the ``anthropic`` package, 2.14.

Sampling fields are those of its earlier versions, which clients still send. Unknown fields are an error at every level.
``cache_control`` is accepted and ignored: prompts are always cached.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from omnibus.pricing import RequestUsage
from omnibus_gateway.openai.chat_request import Count, Share, Temperature, TopK
from omnibus_gateway.openai.options import Description, Id

MESSAGES = "/v1/messages"
COUNT_TOKENS = f"{MESSAGES}/count_tokens"
#: Limits of the tools, of the blocks of one message and of the stop sequences of one request.
MAX_TOOLS, MAX_BLOCKS, MAX_STOPS = 512, 1024, 16

ToolName = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.-]+$")]


class CacheControl(Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: str | None = None


class InputBlock(Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """A block of content, with the fields that change nothing here."""

    cache_control: CacheControl | None = None


class TextBlock(InputBlock, frozen=True, tag="text"):
    text: str
    citations: list[Any] | None = None


class Base64Source(Struct, frozen=True, tag_field="type", tag="base64", forbid_unknown_fields=True):
    media_type: Annotated[str, Meta(max_length=128)]
    data: str


class UrlSource(Struct, frozen=True, tag_field="type", tag="url", forbid_unknown_fields=True):
    url: Annotated[str, Meta(min_length=1)]


class UploadedSource(Struct, frozen=True, tag_field="type", tag="file", forbid_unknown_fields=True):
    """A file of ``/v1/files``."""

    file_id: Annotated[str, Meta(min_length=1, max_length=128)]


class TextSource(Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    data: str
    media_type: Literal["text/plain"] = "text/plain"


class ContentSource(Struct, frozen=True, tag_field="type", tag="content", forbid_unknown_fields=True):
    content: "str | list[TextBlock | ImageBlock]"


class ImageBlock(InputBlock, frozen=True, tag="image"):
    source: Base64Source | UrlSource | UploadedSource
    transformations: dict[str, Any] | None = None


class DocumentBlock(InputBlock, frozen=True, tag="document"):
    """A document. Only texts are supported; ``title`` and ``context`` are part of the text."""

    source: TextSource | ContentSource | Base64Source | UrlSource | UploadedSource
    title: str | None = None
    context: str | None = None
    citations: dict[str, Any] | None = None


class SearchResultBlock(InputBlock, frozen=True, tag="search_result"):
    source: str
    title: str
    content: list[TextBlock]
    citations: dict[str, Any] | None = None


class ThinkingBlock(InputBlock, frozen=True, tag="thinking"):
    """Earlier reasoning. With ``display`` omitted, its text is in the ``signature``."""

    thinking: str
    signature: str = ""


class RedactedThinkingBlock(InputBlock, frozen=True, tag="redacted_thinking"):
    data: str


class ToolUseBlock(InputBlock, frozen=True, tag="tool_use"):
    id: Id
    name: ToolName
    input: dict[str, Any]
    caller: dict[str, Any] | None = None
    toolset_name: str | None = None


ResultBlock = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock


class ToolResultBlock(InputBlock, frozen=True, tag="tool_result"):
    tool_use_id: Id
    content: str | Annotated[list[ResultBlock], Meta(max_length=MAX_BLOCKS)] | None = None
    is_error: bool | None = None
    toolset_name: str | None = None


ContentBlock = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
)


class MessageTurn(Struct, frozen=True, forbid_unknown_fields=True):
    """One message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[ContentBlock], Meta(max_length=MAX_BLOCKS)]


class CustomTool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that the client runs. ``input_schema`` is a JSON schema."""

    name: ToolName
    input_schema: dict[str, Any]
    description: Description | None = None
    strict: bool | None = None
    type: Literal["custom"] | None = None

    # Accepted and ignored: all tools are called directly, and their input is streamed as it is generated.
    allowed_callers: list[str] | None = None
    cache_control: CacheControl | None = None
    defer_loading: bool | None = None
    eager_input_streaming: bool | None = None
    input_examples: list[dict[str, Any]] | None = None


class AutoChoice(Struct, frozen=True, tag_field="type", tag="auto", forbid_unknown_fields=True):
    disable_parallel_tool_use: bool | None = None


class AnyChoice(Struct, frozen=True, tag_field="type", tag="any", forbid_unknown_fields=True):
    disable_parallel_tool_use: bool | None = None


class ToolChoice(Struct, frozen=True, tag_field="type", tag="tool", forbid_unknown_fields=True):
    name: ToolName
    disable_parallel_tool_use: bool | None = None


class NoneChoice(Struct, frozen=True, tag_field="type", tag="none", forbid_unknown_fields=True):
    """No tool may be called."""


Display = Literal["summarized", "omitted"]


class ThinkingEnabled(Struct, frozen=True, tag_field="type", tag="enabled", forbid_unknown_fields=True):
    """Reasoning before the answer. ``budget_tokens`` has no effect: ``max_tokens`` limits both."""

    budget_tokens: Count
    display: Display | None = None


class ThinkingAdaptive(Struct, frozen=True, tag_field="type", tag="adaptive", forbid_unknown_fields=True):
    """Reasoning as the model decides."""

    display: Display | None = None


class ThinkingBetweenTools(Struct, frozen=True, tag_field="type", tag="between_tools", forbid_unknown_fields=True):
    """Reasoning as the model decides."""


class ThinkingDisabled(Struct, frozen=True, tag_field="type", tag="disabled", forbid_unknown_fields=True):
    """No reasoning."""


class JsonOutput(Struct, frozen=True, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    schema: dict[str, Any]


class OutputConfig(Struct, frozen=True, forbid_unknown_fields=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonOutput | None = None


class ClearEdit(Struct, frozen=True):
    """A rule that drops old reasoning or results of long conversations. Here the model reads all of them."""

    type: Annotated[str, Meta(max_length=64, pattern="^clear_")]


class ContextManagement(Struct, frozen=True, forbid_unknown_fields=True):
    edits: Annotated[list[ClearEdit], Meta(max_length=16)] | None = None


class RequestMetadata(Struct, frozen=True, forbid_unknown_fields=True):
    user_id: Annotated[str, Meta(max_length=512)] | None = None


class _Prompt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields that determine the prompt."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: Annotated[list[MessageTurn], Meta(min_length=1, max_length=2048)]
    system: str | Annotated[list[TextBlock], Meta(max_length=MAX_BLOCKS)] | None = None
    tools: Annotated[list[CustomTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: AutoChoice | AnyChoice | ToolChoice | NoneChoice | None = None
    thinking: ThinkingEnabled | ThinkingAdaptive | ThinkingBetweenTools | ThinkingDisabled | None = None
    output_config: OutputConfig | None = None

    # Accepted and ignored: elsewhere they change cost or speed, and rarely the answer.
    cache_control: CacheControl | None = None
    context_management: ContextManagement | None = None
    speed: str | None = None


class CountTokensRequest(_Prompt, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to count the tokens of a prompt."""


class MessageRequest(_Prompt, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for the next message of a conversation."""

    max_tokens: Count
    stream: bool | None = None
    stop_sequences: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=MAX_STOPS)] | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    metadata: RequestMetadata | None = None

    # Accepted and ignored: elsewhere they change cost, place or speed, never the answer.
    diagnostics: Any = None
    inference_geo: str | None = None
    service_tier: str | None = None


class TextContent(Struct, frozen=True, tag_field="type", tag="text"):
    text: str
    citations: None = None


class ThinkingContent(Struct, frozen=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class ToolUseContent(Struct, frozen=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


OutputBlock = TextContent | ThinkingContent | ToolUseContent


class MessageTokensDetails(Struct, frozen=True):
    thinking_tokens: int


class MessageUsage(Struct, frozen=True):
    """Token counts. ``omnibus`` is an extra for clients that send the header ``x-omnibus-usage``."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    output_tokens_details: MessageTokensDetails | UnsetType = UNSET
    omnibus: RequestUsage | UnsetType = UNSET


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]


class Message(Struct, frozen=True, tag_field="type", tag="message"):
    id: str
    model: str
    content: list[OutputBlock]
    usage: MessageUsage
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    role: Literal["assistant"] = "assistant"


class MessageTokensCount(Struct, frozen=True):
    input_tokens: int


class MessageStart(Struct, frozen=True, tag_field="type", tag="message_start"):
    message: Message


class ContentBlockStart(Struct, frozen=True, tag_field="type", tag="content_block_start"):
    index: int
    content_block: OutputBlock


class TextDelta(Struct, frozen=True, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(Struct, frozen=True, tag_field="type", tag="signature_delta"):
    signature: str


class InputJsonDelta(Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    partial_json: str


class ContentBlockDelta(Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class ContentBlockStop(Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    index: int


class StopDelta(Struct, frozen=True):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Struct, frozen=True, tag_field="type", tag="message_delta"):
    delta: StopDelta
    usage: MessageUsage


class MessageStop(Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The last event of a complete message."""


MessageEvent = MessageStart | ContentBlockStart | ContentBlockDelta | ContentBlockStop | MessageDelta | MessageStop


class ErrorObject(Struct, frozen=True):
    type: str
    message: str


class ErrorResponse(Struct, frozen=True, tag_field="type", tag="error"):
    """The body of an error, and the data of an ``error`` event."""

    error: ErrorObject
    request_id: str | None
