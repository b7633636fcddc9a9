"""The body of ``POST /v1/responses``. Unsupported fields are rejected by name."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from omnibus.errors import BadRequest
from omnibus_gateway.openai.chat_request import (
    AudioOutput,
    Count,
    Effort,
    Penalty,
    Presence,
    Share,
    StreamOptions,
    Temperature,
    TopK,
)
from omnibus_gateway.openai.images import check_options
from omnibus_gateway.openai.options import MAX_TOOLS, Description, Name, VllmParams
from omnibus_gateway.openai.parse import check_values, convert_json, invalid_request
from omnibus_gateway.openai.responses.items import (
    IMAGE_TOOL,
    FlatAllowedChoice,
    FlatFunctionTool,
    FlatNamedChoice,
    ImageGenerationTool,
    InputItem,
    InputMessage,
    InputText,
    NamedImageChoice,
)
from omnibus_gateway.openai.responses.tools import (
    ApplyPatchChoice,
    NamedCustomChoice,
    ResponseTool,
    ShellChoice,
    check_agent_tools,
)

PATH = "/v1/responses"
RESPONSE = f"{PATH}/{{response_id}}"
CANCEL = f"{RESPONSE}/cancel"
INPUT_ITEMS = f"{RESPONSE}/input_items"

#: Format of response ids, so that no other text becomes a key.
RESPONSE_ID = re.compile(r"resp_[0-9a-f]{48}")

MetadataKey = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=16)]
ResponseId = Annotated[str, Meta(min_length=1, max_length=128)]


class ConversationReference(Struct, frozen=True, forbid_unknown_fields=True):
    id: ResponseId


class PlainFormat(Struct, frozen=True, tag_field="type", tag="text"):
    """Any text."""


class ObjectFormat(Struct, frozen=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class SchemaFormat(Struct, frozen=True, tag_field="type", tag="json_schema"):
    """JSON that satisfies a schema."""

    name: Name
    schema: dict[str, Any]
    description: Description | None = None
    strict: bool | None = None


class TextConfig(Struct, frozen=True, forbid_unknown_fields=True):
    format: PlainFormat | ObjectFormat | SchemaFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(Struct, frozen=True, forbid_unknown_fields=True):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


ResponseTools = Annotated[list[ResponseTool], Meta(max_length=MAX_TOOLS)]
ResponseToolChoice = (
    Literal["none", "auto", "required"]
    | FlatNamedChoice
    | FlatAllowedChoice
    | NamedImageChoice
    | NamedCustomChoice
    | ShellChoice
    | ApplyPatchChoice
)


class ResponseRequest(VllmParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for a response. None means that the client did not set the field."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input: str | Annotated[list[InputItem], Meta(max_length=2048)] | None = None
    instructions: str | None = None
    previous_response_id: ResponseId | None = None
    conversation: ResponseId | ConversationReference | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    #: Whether the response can be retrieved, continued and referenced later; true by default.
    store: bool | None = None
    background: bool | None = None
    max_output_tokens: Count | None = None
    metadata: Metadata | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include: Annotated[list[str], Meta(max_length=16)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    tools: ResponseTools | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Count | None = None

    # Extras, with the same meaning as in chats.
    modalities: Annotated[list[Literal["text", "audio"]], Meta(min_length=1, max_length=2)] | None = None
    audio: AudioOutput | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    top_k: TopK | None = None
    repetition_penalty: Penalty | None = None
    ignore_eos: bool | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    presence_penalty: Presence | None = None
    frequency_penalty: Presence | None = None

    # Accepted only with values that change nothing.
    top_logprobs: int | None = None
    prompt: Any = None
    moderation: Any = None
    access_programs: Any = None
    context_management: Any = None

    #: The same as in chats.
    prompt_cache_key: str | None = None
    # Accepted and ignored: elsewhere they change cost, storage or speed, never the answer.
    client_metadata: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    user: str | None = None

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    @property
    def items(self) -> list[InputItem]:
        """The new items of this request."""
        if self.input is None:
            return []
        if isinstance(self.input, str):
            return [InputMessage("user", [InputText(self.input)])]
        return self.input

    @property
    def conversation_id(self) -> str:
        """The id of the conversation, or "" if there is none."""
        if self.conversation is None:
            return ""
        return self.conversation if isinstance(self.conversation, str) else self.conversation.id

    @property
    def image_tool(self) -> ImageGenerationTool | None:
        """The tool that generates images, or None."""
        return next((tool for tool in self.tools or () if isinstance(tool, ImageGenerationTool)), None)

    @property
    def verbosity(self) -> str:
        return (self.text and self.text.verbosity) or "medium"

    @property
    def requires_calls(self) -> bool:
        """True if the answer must be calls, which a grammar constrains."""
        choice = self.tool_choice
        if isinstance(choice, FlatAllowedChoice):
            return choice.mode == "required"
        return choice not in (None, "none", "auto")

    @property
    def wants_encrypted_reasoning(self) -> bool:
        return "reasoning.encrypted_content" in (self.include or ())


def _one_of(*values: object) -> Callable[[Any], bool]:
    return lambda value: value in values


# Values of each field that do not change the answer. Any other value is rejected with the field's name.
_ACCEPTED_VALUES: dict[str, Callable[[Any], bool]] = {
    "top_logprobs": _one_of(0),
    "moderation": _one_of(),
    "access_programs": _one_of(),
    "context_management": _one_of([]),
}
#: Tools that only a hosted service can run, by the beginning of their type, and the alternative.
_HOSTED_TOOLS = {
    "web_search": 'send a function that searches, or turn it off in the client (Codex: web_search = "disabled")',
    "file_search": "send a function that searches your files",
    "code_interpreter": "send a function, or the tool shell, which run in the client",
    "computer": "send functions for the actions, which run in the client",
    "mcp": "connect the client to the MCP server, which then sends its tools as functions",
    "tool_search": "send all tools",
    "programmatic_tool_calling": "send functions, which the model calls directly",
}
#: Accepted values of ``include``: parts that every response has, and those that are added on request.
_INCLUDABLE = frozenset({"reasoning.encrypted_content", "message.input_image.image_url"})


def parse_response_request(body: bytes) -> ResponseRequest:
    """Decode and check a request.

    Raises ``BadRequest``; ``param`` is the JSON path in OpenAI's style (``input[0].content``). Raises ``TooLarge``.
    """
    check_values(body)
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest("The request body is not valid JSON in UTF-8.") from None
    request = convert_response_request(document)
    check_response_request(request)
    return request


def convert_response_request(document: Any) -> ResponseRequest:
    """Convert decoded JSON to a request. Items without a type are messages. Raises ``BadRequest``."""
    if isinstance(document, dict) and isinstance(document.get("input"), list):
        document["input"] = [name_message(item) for item in document["input"]]
    check_tool_types(document)
    try:
        return convert_json(document, ResponseRequest)
    except (msgspec.ValidationError, RecursionError) as error:
        raise invalid_request(str(error), ResponseRequest, document) from None


def check_tool_types(document: Any) -> None:
    """Raises ``BadRequest`` with a hint for tools of hosted services."""
    tools = document.get("tools") if isinstance(document, dict) else None
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        hint = next((each for name, each in _HOSTED_TOOLS.items() if str(kind).startswith(name)), "")
        if hint:
            raise BadRequest(f"The gateway has no tool {str(kind)[:64]}: {hint}.", param=f"tools[{index}].type")


def name_message(item: Any) -> Any:
    """Add the optional type of a message to ``item``."""
    return {"type": "message", **item} if isinstance(item, dict) else item


def check_response_request(request: ResponseRequest) -> None:
    """Raises ``BadRequest`` with the name of the first unsupported field."""
    for name, harmless in _ACCEPTED_VALUES.items():
        value = getattr(request, name)
        if value is not None and not harmless(value):
            raise _unsupported_value(name)
    for name in request.include or ():
        if name not in _INCLUDABLE:
            raise BadRequest(
                f"include cannot be {name[:64]!r}: it must be one of {', '.join(sorted(_INCLUDABLE))}.", param="include"
            )
    if request.prompt is not None:
        raise BadRequest("Prompt templates are not stored here: send their text as instructions.", param="prompt")
    check_agent_tools(request.tools or (), has_grammar=request.requires_calls)
    _check_images(request)
    _check_audio(request)
    _check_state(request)


def _check_images(request: ResponseRequest) -> None:
    """Check that at most one tool generates images under its name."""
    tools = request.tools or []
    places = [index for index, tool in enumerate(tools) if isinstance(tool, ImageGenerationTool)]
    if isinstance(request.tool_choice, NamedImageChoice) and not places:
        raise BadRequest("tool_choice must be one of tools: add image_generation to tools.", param="tool_choice")
    if len(places) > 1:
        raise BadRequest("tools must have at most one image_generation.", param=f"tools[{places[1]}]")
    for index, tool in enumerate(tools):
        if isinstance(tool, FlatFunctionTool) and places and tool.name == IMAGE_TOOL:
            raise BadRequest(
                "A function cannot have the name image_generation, which is the image tool's: rename it.",
                param=f"tools[{index}].name",
            )
        if isinstance(tool, ImageGenerationTool):
            try:
                check_options(tool.to_image_request("-", "-"))
            except BadRequest as error:
                error.param = f"tools[{index}].{error.param}"
                raise


def _check_audio(request: ResponseRequest) -> None:
    wants_audio = request.modalities is not None and "audio" in request.modalities
    if wants_audio and request.audio is None:
        raise BadRequest("Audio output requires audio: {voice, format}.", param="audio")
    if request.audio is not None and not wants_audio:
        raise BadRequest("audio is only allowed when modalities contain audio.", param="audio")


def _check_state(request: ResponseRequest) -> None:
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options is only allowed when stream is true.", param="stream_options")
    if request.previous_response_id is not None and request.conversation is not None:
        raise BadRequest(
            "Set previous_response_id or conversation, not both: each defines the history.", param="conversation"
        )
    if request.background and not request.is_stored:
        raise BadRequest("A background response is always stored: omit store.", param="store")
    if not request.items and request.previous_response_id is None and request.conversation is None:
        raise BadRequest("Missing required parameter: 'input'.", param="input")


def _unsupported_value(param: str) -> BadRequest:
    return BadRequest(f"The value of '{param}' is not supported: omit it.", param=param)
