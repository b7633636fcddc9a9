"""Chat answers in OpenAI's shapes. Source: the response types of the ``openai`` package, 3.52."""

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

FinishReason = Literal["stop", "length", "content_filter"]


class PromptDetails(Struct, frozen=True):
    audio_tokens: int = 0
    cached_tokens: int = 0
    image_tokens: int = 0  # video included
    text_tokens: int = 0


class CompletionDetails(Struct, frozen=True):
    """``image_tokens`` is an extra: one for 16 x 16 pixels."""

    audio_tokens: int = 0
    image_tokens: int = 0
    text_tokens: int = 0
    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class ChatCompletionAudio(Struct, frozen=True):
    """``data`` is the encoded sound; it becomes base64 in JSON. ``expires_at`` in Unix seconds."""

    id: str
    data: bytes
    expires_at: int
    transcript: str


class ChatCompletionImageUrl(Struct, frozen=True):
    url: str


class ChatCompletionImage(Struct, frozen=True):
    """A picture of an answer, an extra that other open servers have: ``url`` is a data URL, or that of a file."""

    image_url: ChatCompletionImageUrl
    index: int
    type: Literal["image_url"] = "image_url"


class ChatCompletionMessage(Struct, frozen=True):
    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: str | None = None
    audio: ChatCompletionAudio | UnsetType = UNSET
    images: list[ChatCompletionImage] | UnsetType = UNSET


class ChatCompletionChoice(Struct, frozen=True):
    message: ChatCompletionMessage
    finish_reason: FinishReason
    index: int = 0
    logprobs: None = None


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
) -> Usage:
    """Token counts. The prompt is the sum of its three kinds; ``cached`` tokens are among them."""
    prompt = prompt_text + prompt_image + prompt_audio
    answer = text + audio + image
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=answer,
        total_tokens=prompt + answer,
        prompt_tokens_details=PromptDetails(
            audio_tokens=prompt_audio, cached_tokens=cached, image_tokens=prompt_image, text_tokens=prompt_text
        ),
        completion_tokens_details=CompletionDetails(audio_tokens=audio, image_tokens=image, text_tokens=text),
    )


def encode_completion(
    *,
    id: str,
    model: str,
    created: int,
    text: str | None,
    finish_reason: FinishReason,
    usage: Usage,
    audio: ChatCompletionAudio | None = None,
    fingerprint: str = "",
) -> bytes:
    """A whole answer as JSON. ``text`` is None when only the transcript of ``audio`` is wanted."""
    message = ChatCompletionMessage(content=text, audio=audio or UNSET)
    answer = ChatCompletion(
        id=id,
        created=created,
        model=model,
        choices=[ChatCompletionChoice(message=message, finish_reason=finish_reason)],
        usage=usage,
        system_fingerprint=fingerprint or None,
    )
    return _ENCODER.encode(answer)


def encode_image_completion(
    *, id: str, model: str, created: int, text: str | None, usage: Usage, images: list[ChatCompletionImage]
) -> bytes:
    """A whole answer of pictures as JSON. ``text`` is None when no text was asked for."""
    choice = ChatCompletionChoice(message=ChatCompletionMessage(content=text, images=images), finish_reason="stop")
    return _ENCODER.encode(ChatCompletion(id=id, created=created, model=model, choices=[choice], usage=usage))
