"""Conversion of message requests to chats. Both use the same generation."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from omnibus.errors import BadRequest, Rejected
from omnibus_gateway.anthropic.answer import MessageStream, encode_message
from omnibus_gateway.anthropic.turns import ChatBuilder, MessagePlace
from omnibus_gateway.anthropic.wire import (
    AnyChoice,
    AutoChoice,
    CountTokensRequest,
    CustomTool,
    MessageRequest,
    NoneChoice,
    ThinkingAdaptive,
    ThinkingDisabled,
    ThinkingEnabled,
    ToolChoice,
)
from omnibus_gateway.openai import options as chat_options
from omnibus_gateway.openai.chat_request import AssistantMessage, ChatRequest, Message
from omnibus_gateway.openai.chat_response import AnswerEncoders, encode_image_completion
from omnibus_gateway.openai.parse import check_chat, check_values, convert_json, invalid_request


class MessageChat(ChatRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A chat whose response is a message. With ``hides_reasoning``, the texts of its reasoning are empty."""

    hides_reasoning: bool = False

    @property
    def encoders(self) -> AnswerEncoders:
        options: dict[str, Any] = {"stops": self.stop_strings, "hides_reasoning": self.hides_reasoning}
        return AnswerEncoders(
            partial(encode_message, **options), encode_image_completion, partial(MessageStream, **options), last=b""
        )


class TranslatedRequest(Struct, frozen=True):
    """A chat, and the client's place of each message and of its parts."""

    chat: MessageChat
    places: tuple[MessagePlace, ...]

    def client_param(self, param: str) -> str:
        """Convert ``param`` of an error about the chat to the client's."""
        match = _PLACE.match(param)
        if match is None:
            return _CLIENT_PARAMS.get(param, param).replace(".function.name", ".name")
        place = self.places[int(match["message"])]
        if match["part"] is None:
            return place.param
        return place.parts[int(match["part"])]

    @contextmanager
    def rename_params(self) -> Iterator[None]:
        """Give errors inside the client's ``param``."""
        try:
            yield
        except Rejected as error:
            error.param = self.client_param(error.param)
            raise


_PLACE = re.compile(r"messages\[(?P<message>\d+)\](?:\.content\[(?P<part>\d+)\])?")
_CLIENT_PARAMS = {
    "max_completion_tokens": "max_tokens",
    "reasoning_effort": "output_config.effort",
    "response_format.json_schema.schema": "output_config.format.schema",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
}
_HINTS = {
    "mcp_servers": "The gateway does not connect to MCP servers: connect the client to them, and send their tools.",
    "container": "The gateway runs no code: omit container, and run tools in the client.",
}
Kind = TypeVar("Kind", MessageRequest, CountTokensRequest)


def parse_message_request(body: bytes, kind: type[Kind]) -> Kind:
    """Decode a request. Raises ``BadRequest`` with ``param``, and ``TooLarge``."""
    check_values(body)
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest("The request body is not valid JSON in UTF-8.") from None
    if isinstance(document, dict):
        _refuse_server_features(document)
    try:
        return convert_json(document, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise invalid_request(str(error), kind, document) from None


def _refuse_server_features(document: dict[str, Any]) -> None:
    """Raise ``BadRequest`` with a hint for features that only Anthropic's servers have."""
    for name, hint in _HINTS.items():
        if document.pop(name, None):
            raise BadRequest(hint, param=name)
    tool_list = document.get("tools")
    for index, tool in enumerate(tool_list if isinstance(tool_list, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != "custom":
            raise BadRequest(
                f"Tools of type {kind[:64]!r} are not supported: send a tool with name, description and input_schema, "
                "and run it in the client.",
                param=f"tools[{index}].type",
            )


def to_chat(request: MessageRequest | CountTokensRequest) -> TranslatedRequest:
    """Build the chat of ``request``. Raises ``BadRequest`` for blocks that a chat does not support."""
    builder = ChatBuilder()
    if request.system:
        builder.add_system(request.system, "system")
    for index, turn in enumerate(request.messages):
        builder.add_turn(turn, f"messages[{index}]")
    answer = _answer_fields(request) if isinstance(request, MessageRequest) else {}
    prefill = _is_prefill(builder.messages[-1])
    asked = MessageChat(
        model=request.model,
        messages=builder.messages,
        continue_final_message=True if prefill else None,
        add_generation_prompt=False if prefill else None,
        **_tool_fields(request),
        **_reasoning_fields(request),
        **answer,
    )
    translated = TranslatedRequest(asked, tuple(builder.places))
    with translated.rename_params():
        check_chat(asked)
    return translated


def _is_prefill(message: Message) -> bool:
    """Return whether the answer continues ``message``."""
    return isinstance(message, AssistantMessage) and bool(message.content) and not message.tool_calls


def _answer_fields(request: MessageRequest) -> dict[str, Any]:
    stops = request.stop_sequences or None
    return {
        "max_tokens": request.max_tokens,
        "stream": request.stream,
        "stop": stops,
        "include_stop_str_in_output": True if stops else None,  # the answer shows which one was generated
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "user": request.metadata.user_id if request.metadata is not None else None,
    }


def _tool_fields(request: MessageRequest | CountTokensRequest) -> dict[str, Any]:
    choice = request.tool_choice
    is_single = choice is not None and not isinstance(choice, NoneChoice) and choice.disable_parallel_tool_use
    return {
        "tools": [_to_tool(tool) for tool in request.tools] if request.tools else None,
        "tool_choice": _to_tool_choice(choice),
        "parallel_tool_calls": False if is_single else None,
    }


def _to_tool(tool: CustomTool) -> chat_options.FunctionTool:
    return chat_options.FunctionTool(
        chat_options.FunctionDefinition(tool.name, tool.description, tool.input_schema, tool.strict)
    )


def _to_tool_choice(choice: AutoChoice | AnyChoice | ToolChoice | NoneChoice | None) -> chat_options.ToolChoice | None:
    match choice:
        case AutoChoice():
            return "auto"
        case AnyChoice():
            return "required"
        case NoneChoice():
            return "none"
        case ToolChoice(name):
            return chat_options.NamedToolChoice(chat_options.FunctionName(name))
    return None


def _reasoning_fields(request: MessageRequest | CountTokensRequest) -> dict[str, Any]:
    thinking, config = request.thinking, request.output_config
    fields: dict[str, Any] = {}
    if config is not None and config.effort is not None:
        fields["reasoning_effort"] = "xhigh" if config.effort == "max" else config.effort
        fields["chat_template_kwargs"] = {"reasoning_effort_hint": True}  # agents send an effort to all models
    if config is not None and config.format is not None:
        fields["response_format"] = chat_options.JsonSchemaFormat(
            chat_options.JsonSchema("answer", config.format.schema)
        )
    if isinstance(thinking, ThinkingDisabled):
        fields["reasoning_effort"] = "none"
    elif isinstance(thinking, ThinkingEnabled):
        fields["chat_template_kwargs"] = {**fields.get("chat_template_kwargs", {}), "enable_thinking": True}
    if isinstance(thinking, ThinkingEnabled | ThinkingAdaptive):
        fields["hides_reasoning"] = thinking.display == "omitted"
    return fields
