"""From a response's items to the chat that a model answers: one answer machinery for both."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from omnibus.errors import BadRequest
from services.gateway.openai import chat_request as chat
from services.gateway.openai.chat_request import ChatRequest, ImageUrl, Message, Url
from services.gateway.openai.responses.items import (
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
    ItemReference,
    OutputAudio,
    OutputText,
    Reasoning,
    Refusal,
)
from services.gateway.openai.responses.request import ResponseRequest


class ChatOfResponse(Struct, frozen=True):
    """A chat, and which item each of its messages comes from: its place in the request's input, or in the history."""

    request: ChatRequest
    sources: tuple[str, ...]

    def client_param(self, param: str) -> str:
        """``param`` of an error about the chat, as the client of the response calls it."""
        if not param.startswith("messages["):
            return _CLIENT_PARAMS.get(param, param)
        number, _, rest = param.removeprefix("messages[").partition("]")
        source = self.sources[int(number)] if number.isdigit() and int(number) < len(self.sources) else "input"
        if not source.startswith("input"):
            return source
        return source + rest.replace(".image_url.url", ".image_url").replace(".video_url.url", ".video_url")


#: What clients call what a chat calls otherwise.
_CLIENT_PARAMS = {"messages": "input", "max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens"}


def to_chat(
    wanted: ResponseRequest, history: Sequence[InputItem], items: Sequence[InputItem], history_param: str
) -> ChatOfResponse:
    """The chat of ``history``, which ``history_param`` names, and then ``items``, those of the request.

    Raises ``BadRequest`` for what a chat cannot say.
    """
    messages: list[Message] = []
    sources: list[str] = []
    if wanted.instructions:
        messages.append(chat.SystemMessage(wanted.instructions))
        sources.append("instructions")
    named = [(item, history_param) for item in history]
    named += [
        (item, f"input[{index}]" if isinstance(wanted.input, list) else "input") for index, item in enumerate(items)
    ]
    for item, param in named:
        message = _to_message(item, param)
        messages.append(message)
        sources.append(param)
    request = ChatRequest(
        model=wanted.model,
        messages=messages,
        modalities=list(wanted.modalities) if wanted.modalities is not None else None,
        audio=wanted.audio,
        max_completion_tokens=wanted.max_output_tokens,
        temperature=wanted.temperature,
        top_p=wanted.top_p,
        seed=wanted.seed,
        top_k=wanted.top_k,
        repetition_penalty=wanted.repetition_penalty,
        ignore_eos=wanted.ignore_eos,
    )
    return ChatOfResponse(request, tuple(sources))


def _to_message(item: InputItem, param: str) -> Message:
    match item:
        case InputMessage(role="assistant"):
            return chat.AssistantMessage(_assistant_text(item, param))
        case InputMessage(role="user"):
            return chat.UserMessage(_user_content(item.content, param))
        case InputMessage(role="system"):
            return chat.SystemMessage(_plain_text(item.content, param))
        case InputMessage():
            return chat.DeveloperMessage(_plain_text(item.content, param))
        case FunctionCallItem() | FunctionCallOutput() | Reasoning() | ImageGenerationCall() | ItemReference():
            raise BadRequest("Items of this type are not supported here: leave it out.", param=f"{param}.type")
    raise AssertionError(item)


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
                raise BadRequest("An assistant's message has text.", param=f"{param}.content[{index}]")
    return "".join(texts)


def _plain_text(content: Any, param: str) -> str | list[chat.TextPart]:
    if isinstance(content, str):
        return content
    for index, part in enumerate(content):
        if not isinstance(part, InputText | OutputText):
            raise BadRequest("This message takes text only.", param=f"{param}.content[{index}]")
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
            raise BadRequest("Files are not supported here: send images, audio or video.", param=param)
    raise BadRequest("A user's message has text, images, audio and video.", param=param)


def _image_part(part: InputImage, param: str) -> chat.ImagePart:
    if part.file_id is not None:
        raise BadRequest("Files are not supported here: send image_url.", param=f"{param}.file_id")
    if not part.image_url:
        raise BadRequest(f"Missing required parameter: '{param}.image_url'.", param=f"{param}.image_url")
    return chat.ImagePart(ImageUrl(part.image_url, part.detail))


def output_as_input(output: Sequence[Any]) -> list[InputItem]:
    """Items of a response's output as those of a later input."""
    return msgspec.json.decode(msgspec.json.encode(output), type=list[InputItem])
