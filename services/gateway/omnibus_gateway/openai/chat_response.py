"""Chat completions in OpenAI's format. Source: the response types of the ``openai`` package, 3.52."""

from hashlib import blake2b
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from omnibus.pricing import RequestUsage

FinishReason = Literal["stop", "length", "content_filter", "tool_calls"]


class PromptDetails(Struct, frozen=True):
    audio_tokens: int = 0
    cached_tokens: int = 0
    image_tokens: int = 0  # video included
    text_tokens: int = 0


class CompletionDetails(Struct, frozen=True):
    """Tokens of an answer by kind. ``image_tokens`` is an extra: one per 16 x 16 pixels."""

    audio_tokens: int = 0
    image_tokens: int = 0
    text_tokens: int = 0
    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(Struct, frozen=True):
    """Token counts. ``omnibus`` is an extra for clients that send the header ``x-omnibus-usage``."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
    omnibus: RequestUsage | UnsetType = UNSET


class ChatCompletionAudio(Struct, frozen=True):
    """Encoded audio. ``data`` becomes base64 in JSON; ``expires_at`` is in Unix seconds."""

    id: str
    data: bytes
    expires_at: int
    transcript: str


class ChatCompletionImageUrl(Struct, frozen=True):
    url: str


class ChatCompletionImage(Struct, frozen=True):
    """An image of an answer, an extra that other open servers have. ``url`` is a data URL or that of a file."""

    image_url: ChatCompletionImageUrl
    index: int
    type: Literal["image_url"] = "image_url"


class CalledFunction(Struct, frozen=True):
    """A function call. ``arguments`` is JSON text as the model wrote it, incomplete if the answer was truncated."""

    name: str
    arguments: str


class ChatCompletionToolCall(Struct, frozen=True):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class TopLogprob(Struct, frozen=True):
    """A token, the natural logarithm of its probability, and its UTF-8 bytes."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(Struct, frozen=True):
    """A token of the answer, and the likeliest tokens at its position."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(Struct, frozen=True):
    content: list[TokenLogprob] | None
    refusal: None = None


class ChatCompletionMessage(Struct, frozen=True):
    """A message of the assistant. ``reasoning_content`` is an extra that other open servers have."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: str | None = None
    audio: ChatCompletionAudio | UnsetType = UNSET
    images: list[ChatCompletionImage] | UnsetType = UNSET
    tool_calls: list[ChatCompletionToolCall] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChatCompletionChoice(Struct, frozen=True):
    message: ChatCompletionMessage
    finish_reason: FinishReason
    index: int = 0
    logprobs: ChoiceLogprobs | None = None


class StructuredParts(Struct, frozen=True):
    """Parts of an answer other than text and audio. ``calls`` are pairs of name and arguments."""

    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    logprobs: list[TokenLogprob] | None = None


NO_PARTS = StructuredParts()


class ChatCompletion(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[ChatCompletionChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    system_fingerprint: str | None = None


_ENCODER = msgspec.json.Encoder()


def build_usage(
    *,
    prompt_text: int = 0,
    prompt_image: int = 0,
    prompt_audio: int = 0,
    cached: int = 0,
    text: int = 0,
    audio: int = 0,
    image: int = 0,
    reasoning: int = 0,
) -> Usage:
    """Count tokens. The prompt is the sum of its three kinds; ``cached`` tokens are included in it."""
    prompt = prompt_text + prompt_image + prompt_audio
    answer = text + audio + image
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=answer,
        total_tokens=prompt + answer,
        prompt_tokens_details=PromptDetails(
            audio_tokens=prompt_audio, cached_tokens=cached, image_tokens=prompt_image, text_tokens=prompt_text
        ),
        completion_tokens_details=CompletionDetails(
            audio_tokens=audio, image_tokens=image, text_tokens=text, reasoning_tokens=reasoning
        ),
    )


def encode_completion(  # noqa: PLR0913 - named one by one, and never passed by place
    *,
    id: str,
    model: str,
    created: int,
    text: str | None,
    finish_reason: FinishReason,
    usage: Usage,
    audio: ChatCompletionAudio | None = None,
    fingerprint: str = "",
    parts: StructuredParts = NO_PARTS,
) -> bytes:
    """Encode a complete response as JSON. ``text`` is None if the client requests only the transcript of ``audio``."""
    answer = ChatCompletion(
        id=id,
        created=created,
        model=model,
        choices=[build_choice(id, text, audio, finish_reason, parts)],
        usage=usage,
        system_fingerprint=fingerprint or None,
    )
    return _ENCODER.encode(answer)


def encode_choices(
    *, id: str, model: str, created: int, choices: list[ChatCompletionChoice], usage: Usage, fingerprint: str
) -> bytes:
    """Encode a complete response with several answers as JSON."""
    return _ENCODER.encode(ChatCompletion(id, created, model, choices, usage, system_fingerprint=fingerprint))


def build_choice(
    id: str,
    text: str | None,
    audio: ChatCompletionAudio | None,
    reason: FinishReason,
    parts: StructuredParts,
    place: int = 0,
) -> ChatCompletionChoice:
    """Build choice number ``place`` of the completion ``id``, with all its parts."""
    if parts is NO_PARTS:
        return ChatCompletionChoice(ChatCompletionMessage(content=text, audio=audio or UNSET), reason, place)
    answer = choice_id(id, place)
    calls = [
        ChatCompletionToolCall(call_id(answer, index), CalledFunction(name, arguments))
        for index, (name, arguments) in enumerate(parts.calls)
    ]
    message = ChatCompletionMessage(
        content=text or (None if calls else text),
        audio=audio or UNSET,
        tool_calls=calls or UNSET,
        reasoning_content=parts.reasoning or UNSET,
    )
    logprobs = None if parts.logprobs is None else ChoiceLogprobs(parts.logprobs)
    return ChatCompletionChoice(message, finish_reason(reason, bool(calls)), place, logprobs)


def token_logprob(token: str, logprob: float, best: list[tuple[str, float]]) -> TokenLogprob:
    """Build the probabilities of a token. ``bytes`` is None if the token is only part of a character."""
    top = [TopLogprob(text, value, _utf8(text)) for text, value in best]
    return TokenLogprob(token, logprob, _utf8(token), top)


def _utf8(text: str) -> list[int] | None:
    return None if "\ufffd" in text else list(text.encode())


def finish_reason(reason: FinishReason, calls: bool) -> FinishReason:
    """Return ``tool_calls`` if the answer stopped after ``calls`` of tools, else ``reason``."""
    return "tool_calls" if calls and reason == "stop" else reason


def choice_id(completion: str, place: int) -> str:
    """Return the id of choice number ``place`` of ``completion``. The first choice has the completion's id."""
    return f"{completion}#{place}" if place else completion


def call_id(answer: str, index: int) -> str:
    """Return the id of call number ``index`` of ``answer``. It is the same if the answer is generated again."""
    return f"call_{blake2b(f'{answer}/{index}'.encode(), digest_size=12).hexdigest()}"


def encode_image_completion(
    *, id: str, model: str, created: int, text: str | None, usage: Usage, images: list[ChatCompletionImage]
) -> bytes:
    """Encode a complete response with images as JSON. ``text`` is None if the client did not request text."""
    choice = ChatCompletionChoice(message=ChatCompletionMessage(content=text, images=images), finish_reason="stop")
    return _ENCODER.encode(ChatCompletion(id=id, created=created, model=model, choices=[choice], usage=usage))
