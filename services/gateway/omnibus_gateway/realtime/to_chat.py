"""Conversion of conversation items to the chat request that a model answers."""

from collections.abc import Sequence

from omnibus.errors import BadRequest
from omnibus_gateway.openai import chat_request as chat
from omnibus_gateway.openai.chat_request import ChatRequest, ImageUrl, Message
from omnibus_gateway.openai.realtime.session import RealtimeTool, SessionConfig
from omnibus_gateway.openai.responses.tools import FlatNamedChoice
from omnibus_gateway.openai.tools import (
    FunctionCall,
    FunctionDefinition,
    FunctionName,
    FunctionTool,
    NamedToolChoice,
    ToolCall,
    ToolChoice,
    check_tools,
)
from omnibus_gateway.realtime.audio_format import to_wav
from omnibus_gateway.realtime.conversation import ConversationItem, ItemPart, encode_base64


def to_chat(config: SessionConfig, items: Sequence[ConversationItem]) -> ChatRequest:
    """Convert ``items`` to a chat request. Raises ``BadRequest`` for items that a chat cannot contain."""
    messages: list[Message] = [chat.SystemMessage(config.instructions)] if config.instructions else []
    for item in items:
        _append_item(messages, item)
    if not messages:
        raise BadRequest("There is nothing to respond to: add an item, or send instructions.", param="response")
    tools = [_to_tool(each) for each in config.tools] or None
    choice = _to_choice(config) if tools else None
    check_tools(tools, choice)
    speaks = config.modality == "audio"
    return ChatRequest(
        model=config.model,
        messages=messages,
        modalities=["audio"] if speaks else None,
        audio=chat.AudioOutput(config.voice, "pcm16") if speaks else None,
        max_completion_tokens=None if config.max_output_tokens == "inf" else config.max_output_tokens,
        temperature=config.temperature,
        seed=config.seed,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=config.parallel_tool_calls if tools else None,
        reasoning_effort=config.effort,
    )


def drop_oldest(items: Sequence[ConversationItem]) -> list[ConversationItem]:
    """Drop about the oldest quarter of ``items``.

    The first item that remains is a user or system message.
    Empty if nothing can be dropped: the last user message must remain.
    """
    first = max(1, len(items) // 4)
    while first < len(items) and items[first].role not in ("user", "system"):
        first += 1
    return list(items[first:])


def _append_item(messages: list[Message], item: ConversationItem) -> None:
    if item.type == "function_call":
        call = ToolCall(item.call_id, FunctionCall(item.name, item.text))
        last = messages[-1] if messages else None
        if isinstance(last, chat.AssistantMessage):
            messages[-1] = chat.AssistantMessage(last.content, tool_calls=[*(last.tool_calls or ()), call])
        else:
            messages.append(chat.AssistantMessage(tool_calls=[call]))
    elif item.type == "function_call_output":
        messages.append(chat.ToolMessage(item.text, item.call_id))
    elif item.role == "system":
        messages.append(chat.SystemMessage([chat.TextPart(part.text) for part in item.parts]))
    elif item.role == "assistant":
        if text := "".join(part.text for part in item.parts):
            messages.append(chat.AssistantMessage(text))
    else:
        messages.append(chat.UserMessage([_user_part(part) for part in item.parts]))


def _user_part(part: ItemPart) -> chat.UserPart:
    if part.type == "input_image":
        return chat.ImagePart(ImageUrl(part.image_url, part.detail))
    if part.format is not None:
        data = encode_base64(to_wav(part.model_audio, part.format))
        return chat.InputAudioPart(chat.InputAudio(data, "wav"))
    return chat.TextPart(part.text)


def _to_tool(tool: RealtimeTool) -> FunctionTool:
    return FunctionTool(FunctionDefinition(tool.name, tool.description, tool.parameters))


def _to_choice(config: SessionConfig) -> ToolChoice:
    if isinstance(config.tool_choice, FlatNamedChoice):
        return NamedToolChoice(FunctionName(config.tool_choice.name))
    return config.tool_choice
