"""Conversion of a response's items to a chat. Both use the same generation."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from omnibus.errors import BadRequest
from omnibus_gateway.openai import chat_request as chat
from omnibus_gateway.openai.chat_request import ChatRequest, ImageUrl, Message, Url
from omnibus_gateway.openai.options import (
    AllowedToolChoice,
    AllowedTools,
    FunctionName,
    FunctionTool,
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    NamedToolChoice,
    ResponseFormat,
    ToolCall,
    ToolChoice,
    check_tools,
    check_vllm_params,
)
from omnibus_gateway.openai.responses.items import (
    IMAGE_TOOL,
    ApplyPatchCall,
    ApplyPatchCallOutput,
    CallItem,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FlatAllowedChoice,
    FlatNamedChoice,
    FunctionCallItem,
    FunctionCallOutput,
    ImageGenerationCall,
    InputAudioContent,
    InputFile,
    InputImage,
    InputItem,
    InputMessage,
    InputText,
    InputVideo,
    LocalShellCall,
    LocalShellCallOutput,
    NamedImageChoice,
    OutputAudio,
    OutputText,
    Reasoning,
    Refusal,
    ShellCall,
    ShellCallOutput,
)
from omnibus_gateway.openai.responses.request import ObjectFormat, ResponseRequest, SchemaFormat
from omnibus_gateway.openai.responses.tools import (
    APPLY_PATCH,
    SHELL,
    ApplyPatchChoice,
    NamedCustomChoice,
    ShellChoice,
    ToolCallFormat,
    describe_function,
    flatten_tools,
    read_call,
    read_output,
)


class TruncatedChat(ChatRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A chat whose oldest messages may be left out."""

    drops_history = True


class ChatOfResponse(Struct, frozen=True):
    """A chat, and the source of each message: a place in the request's input, or the history."""

    request: ChatRequest
    sources: tuple[str, ...]
    calls: ToolCallFormat

    def client_param(self, param: str) -> str:
        """Convert ``param`` of an error about the chat to the response's."""
        if not param.startswith("messages["):
            return _CLIENT_PARAMS.get(param, param)
        number, _, rest = param.removeprefix("messages[").partition("]")
        source = self.sources[int(number)] if number.isdigit() and int(number) < len(self.sources) else "input"
        if not source.startswith("input"):
            return source
        rest = _CALL_PLACE.sub("", rest)
        for of_chat, of_response in _CLIENT_PLACES.items():
            rest = rest.replace(of_chat, of_response)
        return source + rest.removesuffix(".file")


#: Text before the summary of a compaction, in the assistant's message that it becomes.
SUMMARY_HEAD = "Summary of the conversation so far: "
_CALL_PLACE = re.compile(r"\.tool_calls\[\d+\]\.function|\.tool_calls\[\d+\]")
_CLIENT_PLACES = {
    ".image_url.url": ".image_url",
    ".video_url.url": ".video_url",
    ".input_audio.data": ".input_audio",
    ".tool_call_id": ".call_id",
    ".file.file_": ".file_",
}
#: Names of a response's fields that differ from a chat's.
_CLIENT_PARAMS = {"messages": "input", "max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens"}


def to_chat(
    response_request: ResponseRequest, history: Sequence[InputItem], items: Sequence[InputItem], history_param: str
) -> ChatOfResponse:
    """Build the chat of ``history`` followed by ``items``, those of the request.

    Errors about the history have ``history_param``. Raises ``BadRequest`` for items that a chat does not support.
    """
    messages: list[Message] = []
    sources: list[str] = []
    if response_request.instructions:
        messages.append(chat.SystemMessage(response_request.instructions))
        sources.append("instructions")
    item_params = [(item, history_param) for item in history]
    is_list = isinstance(response_request.input, list)
    item_params += [(item, f"input[{index}]" if is_list else "input") for index, item in enumerate(items)]
    for item, param in item_params:
        if isinstance(item, ImageGenerationCall):  # models do not see earlier images
            continue
        message = _to_message(item, param)
        if isinstance(message, chat.AssistantMessage) and messages and _joins(messages[-1], item):
            messages[-1] = _join_messages(messages[-1], message)
            continue
        messages.append(message)
        sources.append(param)
    request = _to_request(response_request, messages)
    check_vllm_params(request)
    try:
        check_tools(request.tools, request.tool_choice)
    except BadRequest as error:
        error.param = error.param.replace(".function.name", ".name")
        raise
    return ChatOfResponse(request, tuple(sources), ToolCallFormat(response_request.tools or ()))


def _to_request(response_request: ResponseRequest, messages: list[Message]) -> ChatRequest:
    kind = TruncatedChat if response_request.truncation == "auto" else ChatRequest
    return kind(
        model=response_request.model,
        messages=messages,
        modalities=list(response_request.modalities) if response_request.modalities is not None else None,
        audio=response_request.audio,
        max_completion_tokens=response_request.max_output_tokens,
        temperature=response_request.temperature,
        top_p=response_request.top_p,
        seed=response_request.seed,
        top_k=response_request.top_k,
        repetition_penalty=response_request.repetition_penalty,
        ignore_eos=response_request.ignore_eos,
        min_p=response_request.min_p,
        chat_template_kwargs=_template_kwargs(response_request),
        presence_penalty=response_request.presence_penalty,
        frequency_penalty=response_request.frequency_penalty,
        tools=[
            FunctionTool(describe_function(name, tool)) for name, tool in flatten_tools(response_request.tools or ())
        ]
        or None,
        tool_choice=_to_tool_choice(response_request),
        parallel_tool_calls=response_request.parallel_tool_calls,
        response_format=_to_response_format(response_request),
        reasoning_effort=response_request.reasoning.effort if response_request.reasoning is not None else None,
        prompt_cache_key=response_request.prompt_cache_key,
        **response_request.vllm_params(),
    )


def _template_kwargs(response_request: ResponseRequest) -> dict[str, Any] | None:
    """Return the variables of the chat template. Some templates read ``verbosity``."""
    if response_request.verbosity == "medium":
        return response_request.chat_template_kwargs
    return {"verbosity": response_request.verbosity, **(response_request.chat_template_kwargs or {})}


def _to_tool_choice(response_request: ResponseRequest) -> ToolChoice | None:
    match response_request.tool_choice:
        case FlatNamedChoice(name) | NamedCustomChoice(name):
            return NamedToolChoice(FunctionName(name))
        case ShellChoice():
            return NamedToolChoice(FunctionName(SHELL))
        case ApplyPatchChoice():
            return NamedToolChoice(FunctionName(APPLY_PATCH))
        case NamedImageChoice():
            return NamedToolChoice(FunctionName(IMAGE_TOOL))
        case FlatAllowedChoice(mode, allowed):
            return AllowedToolChoice(AllowedTools(mode, [NamedToolChoice(FunctionName(each.name)) for each in allowed]))
        case choice:
            return choice


def _to_response_format(response_request: ResponseRequest) -> ResponseFormat | None:
    match response_request.text.format if response_request.text is not None else None:
        case ObjectFormat():
            return JsonObjectFormat()
        case SchemaFormat(name, schema, description, strict):
            return JsonSchemaFormat(JsonSchema(name, schema, description, strict))
    return None


def _to_message(item: InputItem, param: str) -> Message:
    match item:
        case InputMessage():
            return _to_plain_message(item, param)
        case FunctionCallItem() | CustomToolCall() | LocalShellCall() | ShellCall() | ApplyPatchCall():
            return chat.AssistantMessage(tool_calls=[ToolCall(item.call_id, read_call(item))])
        case FunctionCallOutput(call_id, output) | CustomToolCallOutput(call_id, output):
            return chat.ToolMessage(_plain_text(output, param), call_id)
        case LocalShellCallOutput() | ShellCallOutput() | ApplyPatchCallOutput():
            return chat.ToolMessage(read_output(item), _call_id(item, param))
        case Compaction():
            return chat.AssistantMessage(_summary(item, param))
        case Reasoning():
            return chat.AssistantMessage(reasoning_content=item.text or None)
        case _:
            raise BadRequest("Items of this type are not supported: omit it.", param=f"{param}.type")


def _call_id(item: LocalShellCallOutput | ShellCallOutput | ApplyPatchCallOutput, param: str) -> str:
    call_id = item.call_id or item.id
    if not call_id:
        raise BadRequest(f"Missing required parameter: '{param}.call_id'.", param=f"{param}.call_id")
    return call_id


def _summary(item: Compaction, param: str) -> str:
    if not item.text:
        raise BadRequest(
            "encrypted_content must be that of a compaction: send it unchanged.", param=f"{param}.encrypted_content"
        )
    return f"{SUMMARY_HEAD}{item.text}"


def _to_plain_message(item: InputMessage, param: str) -> Message:
    match item.role:
        case "assistant":
            return chat.AssistantMessage(_assistant_text(item, param))
        case "user":
            return chat.UserMessage(_user_content(item.content, param))
        case "system":
            return chat.SystemMessage(_plain_text(item.content, param))
        case _:
            return chat.DeveloperMessage(_plain_text(item.content, param))


def _joins(before: Message, item: InputItem) -> bool:
    """Return whether ``item`` continues the preceding message. Calls follow text, and both follow reasoning."""
    if not isinstance(before, chat.AssistantMessage):
        return False
    thoughts_alone = before.content is None and not before.tool_calls
    return isinstance(item, CallItem) or (isinstance(item, InputMessage) and thoughts_alone)


def _join_messages(before: Message, more: chat.AssistantMessage) -> chat.AssistantMessage:
    if not isinstance(before, chat.AssistantMessage):
        return more
    calls = [*(before.tool_calls or ()), *(more.tool_calls or ())]
    return chat.AssistantMessage(
        content=more.content if before.content is None else before.content,
        tool_calls=calls or None,
        reasoning_content=before.reasoning_content,
    )


def _assistant_text(item: InputMessage, param: str) -> str:
    if isinstance(item.content, str):
        return item.content
    texts: list[str] = []
    for index, part in enumerate(item.content):
        match part:
            case OutputText(text) | InputText(text):
                texts.append(text)
            case Refusal(refusal):
                texts.append(refusal)
            case OutputAudio(transcript):
                texts.append(transcript)
            case _:
                raise BadRequest("Parts of an assistant's message must be text.", param=f"{param}.content[{index}]")
    return "".join(texts)


def _plain_text(content: Any, param: str) -> str | list[chat.TextPart]:
    if isinstance(content, str):
        return content
    for index, part in enumerate(content):
        if not isinstance(part, InputText | OutputText):
            raise BadRequest("Parts of this message must be text.", param=f"{param}.content[{index}]")
    return [chat.TextPart(part.text) for part in content]


def _user_content(content: Any, param: str) -> str | list[chat.UserPart]:
    if isinstance(content, str):
        return content
    return [_user_part(part, f"{param}.content[{index}]") for index, part in enumerate(content)]


def _user_part(part: Any, param: str) -> chat.UserPart:
    match part:
        case InputText(text) | OutputText(text):
            return chat.TextPart(text)
        case InputImage():
            return _image_part(part, param)
        case InputAudioContent(sound):
            return chat.InputAudioPart(chat.InputAudio(sound.data, sound.format))
        case InputVideo(url):
            return chat.VideoPart(Url(url))
        case InputFile():
            return _file_part(part, param)
    raise BadRequest("Parts of a user's message must be text, images, audio or video.", param=param)


def _file_part(part: InputFile, param: str) -> chat.FilePart:
    if part.file_url is not None:
        raise BadRequest("file_url is not supported: send input_image or input_video.", param=f"{param}.file_url")
    return chat.FilePart(chat.FileReference(part.file_id, part.file_data, part.filename))


def _image_part(part: InputImage, param: str) -> chat.ImagePart | chat.FilePart:
    if part.file_id is not None:
        return chat.FilePart(chat.FileReference(part.file_id))
    if not part.image_url:
        raise BadRequest(f"Missing required parameter: '{param}.image_url'.", param=f"{param}.image_url")
    return chat.ImagePart(ImageUrl(part.image_url, part.detail))


def output_as_input(output: Sequence[Any]) -> list[InputItem]:
    """Convert items of a response's output to input items."""
    return msgspec.json.decode(msgspec.json.encode(output), type=list[InputItem])
