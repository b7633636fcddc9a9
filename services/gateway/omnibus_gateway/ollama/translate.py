"""Conversion of Ollama's requests to chats. Both use the same generation."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from omnibus.errors import BadRequest, Rejected
from omnibus_gateway.ollama.answer import AnswerLines, AnswerShape, encode_answer
from omnibus_gateway.ollama.wire import ChatTurn, GenerateRequest, OllamaChatRequest, OllamaOptions
from omnibus_gateway.openai import chat_request as chats
from omnibus_gateway.openai import options as chat_options
from omnibus_gateway.openai.chat_response import AnswerEncoders, encode_image_completion
from omnibus_gateway.openai.parse import check_chat, decode_body

_LATEST = ":latest"
_NO_OPTIONS = OllamaOptions()
_PLACE = re.compile(r"^(messages\[\d+\])\.content\[(\d+)\].*")
_CLIENT_PARAMS = {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "reasoning_effort": "think",
    "response_format.json_schema.schema": "format",
    "response_format": "format",
    **{name: f"options.{name}" for name in ("temperature", "top_k", "top_p", "min_p", "seed", "stop")},
}
_UNSUPPORTED = {
    "suffix": "The gateway does not fill in the middle of texts: omit suffix.",
    "template": "A model has one template, that of its checkpoint: omit template.",
    "raw": "Send prompts without a template to /v1/completions.",
    "context": "Send a conversation as messages to /api/chat: omit context.",
}
_chat_decoder = msgspec.json.Decoder(OllamaChatRequest)
_generate_decoder = msgspec.json.Decoder(GenerateRequest)


class TranslatedChat(chats.ChatRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A chat whose answer has the given ``shape``."""

    shape: AnswerShape

    @property
    def encoders(self) -> AnswerEncoders:
        completion, stream = partial(encode_answer, shape=self.shape), partial(AnswerLines, shape=self.shape)
        return AnswerEncoders(completion, encode_image_completion, stream, last=b"")


def base_name(name: str) -> str:
    """Return the name of a model without the tag that clients add."""
    return name.removesuffix(_LATEST)


@contextmanager
def rename_params(chats: bool) -> Iterator[None]:
    """Give errors inside the names of the client's request, of a chat or of a single prompt."""
    try:
        yield
    except Rejected as error:
        param = _PLACE.sub(lambda place: f"{place[1]}.images[{int(place[2]) - 1}]", error.param)  # after the text
        if not chats and param.startswith("messages["):
            param = param.partition("].")[2].replace("content", "prompt") or "prompt"
        error.param = _CLIENT_PARAMS.get(param, param)
        raise


def parse_chat(body: bytes) -> OllamaChatRequest:
    """Decode a request of ``/api/chat``. Raises ``BadRequest`` and ``TooLarge``."""
    return decode_body(_chat_decoder, body)


def parse_generate(body: bytes) -> GenerateRequest:
    """Decode a request of ``/api/generate``. Raises ``BadRequest`` and ``TooLarge``."""
    request = decode_body(_generate_decoder, body)
    for name, hint in _UNSUPPORTED.items():
        if getattr(request, name):
            raise BadRequest(hint, param=name)
    return request


def answer_shape(request: OllamaChatRequest | GenerateRequest) -> AnswerShape:
    """Return how to answer ``request``."""
    return AnswerShape(isinstance(request, OllamaChatRequest), request.think is not False, time.perf_counter_ns())


def to_chat(request: OllamaChatRequest | GenerateRequest) -> TranslatedChat | None:
    """Build the chat of ``request``; None without a prompt. Raises ``BadRequest``."""
    is_chat = isinstance(request, OllamaChatRequest)
    turns = (request.messages or []) if isinstance(request, OllamaChatRequest) else _to_turns(request)
    if not turns:
        return None
    options = request.options or _NO_OPTIONS
    limit = options.num_predict if options.num_predict is not None and options.num_predict > 0 else None
    messages = _Messages()
    for index, turn in enumerate(turns):
        messages.add(turn, f"messages[{index}]")
    chat = TranslatedChat(
        model=base_name(request.model),
        messages=messages.converted,
        stream=request.stream is not False,
        shape=answer_shape(request),
        max_tokens=limit,
        stop=options.stop,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        seed=options.seed,
        repetition_penalty=options.repeat_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs,
        tools=(request.tools or None) if isinstance(request, OllamaChatRequest) else None,
        response_format=_to_format(request.format),
        **_thinking_fields(request.think),
    )
    with rename_params(is_chat):
        check_chat(chat)
    return chat


def _to_turns(request: GenerateRequest) -> list[ChatTurn]:
    """Return the conversation of a single prompt. Errors about it have no place of their own."""
    if not request.prompt and not request.images:
        return []
    system = [ChatTurn(role="system", content=request.system)] if request.system else []
    return [*system, ChatTurn(role="user", content=request.prompt, images=request.images)]


def _to_format(format: str | dict[str, Any] | None) -> chat_options.ResponseFormat | None:
    if isinstance(format, dict):
        return chat_options.JsonSchemaFormat(chat_options.JsonSchema("answer", format))
    return chat_options.JsonObjectFormat() if format else None


def _thinking_fields(think: bool | str | None) -> dict[str, Any]:
    if think is None:
        return {}
    if isinstance(think, str):
        return {"reasoning_effort": "xhigh" if think == "max" else think}
    return {"chat_template_kwargs": {"enable_thinking": True}} if think else {"reasoning_effort": "none"}


class _Messages:
    """Messages of a chat. Calls get ids by their number, which results of tools then have."""

    def __init__(self) -> None:
        self.converted: list[chats.Message] = []
        self._calls = 0
        self._open_calls: list[chat_options.ToolCall] = []

    def add(self, turn: ChatTurn, param: str) -> None:
        """Convert ``turn``. Raises ``BadRequest`` for fields that its role cannot have."""
        if turn.images and turn.role != "user":
            raise BadRequest("Only messages of the user have images.", param=f"{param}.images")
        match turn.role:
            case "system":
                self.converted.append(chats.SystemMessage(turn.content or ""))
            case "user":
                self.converted.append(_to_user_message(turn))
            case "assistant":
                self.converted.append(self._to_assistant_message(turn))
            case "tool":
                self.converted.append(chats.ToolMessage(turn.content or "", self._called_id(turn, param)))

    def _to_assistant_message(self, turn: ChatTurn) -> chats.AssistantMessage:
        calls = []
        for call in turn.tool_calls or ():
            arguments = msgspec.json.encode(call.function.arguments).decode()
            id = call.id if isinstance(call.id, str) else f"call_{self._calls}"
            calls.append(chat_options.ToolCall(id, chat_options.FunctionCall(call.function.name, arguments)))
            self._calls += 1
        self._open_calls = [*calls]
        return chats.AssistantMessage(
            content=turn.content or ("" if not calls else None),
            tool_calls=calls or None,
            reasoning_content=turn.thinking or None,
        )

    def _called_id(self, turn: ChatTurn, param: str) -> str:
        """Return the id of the call with this result, by id, name or order."""
        for call in self._open_calls:
            if turn.tool_call_id == call.id or (
                turn.tool_call_id is None and turn.tool_name in (None, "", call.function.name)
            ):
                self._open_calls.remove(call)
                return call.id
        name = turn.tool_call_id or turn.tool_name or "a tool"
        raise BadRequest(
            f"The message before the result of {name!r} must have its call in tool_calls.", param=f"{param}.role"
        )


def _to_user_message(turn: ChatTurn) -> chats.UserMessage:
    if not turn.images:
        return chats.UserMessage(turn.content or "")
    images = [chats.ImagePart(chats.ImageUrl(_image_url(data))) for data in turn.images]
    return chats.UserMessage([chats.TextPart(turn.content or ""), *images])


def _image_url(data: str) -> str:
    """Return ``data``, base64, as a data URL. The media type follows from the image."""
    return data if data[:5].lower() == "data:" else f"data:application/octet-stream;base64,{data}"
