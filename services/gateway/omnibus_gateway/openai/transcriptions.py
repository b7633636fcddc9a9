"""Requests, responses and events of ``/v1/audio/transcriptions``. Source: the ``openai`` package's types, 3.52."""

from collections.abc import Mapping
from math import ceil
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from omnibus.errors import BadRequest
from omnibus_gateway.openai.chat_request import Count
from omnibus_gateway.openai.chat_response import Usage
from omnibus_gateway.openai.parse import invalid_request

PATH = "/v1/audio/transcriptions"

#: Fields of a form that may appear several times.
LISTS = (
    "include",
    "timestamp_granularities",
    "keywords",
    "languages",
    "known_speaker_names",
    "known_speaker_references",
)


class TranscriptionForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a request except its file. None means that the client did not set the field."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    #: ISO 639, as ``en``.
    language: Annotated[str, Meta(pattern=r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*$", max_length=16)] | None = None
    #: Subject of the audio, or the text before it.
    prompt: Annotated[str, Meta(max_length=4096)] | None = None
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt", "diarized_json"] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    stream: bool | None = None

    # Extras: the limit of tokens, and the seed of sampling.
    max_tokens: Count | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None

    # Accepted only with values that change nothing.
    chunking_strategy: str | None = None
    include: list[str] | None = None
    timestamp_granularities: list[str] | None = None
    keywords: list[str] | None = None
    languages: list[str] | None = None
    known_speaker_names: list[str] | None = None
    known_speaker_references: list[str] | None = None


class TokenDetails(Struct, frozen=True):
    audio_tokens: int
    text_tokens: int


class TranscriptionUsage(Struct, frozen=True, tag_field="type", tag="tokens"):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_token_details: TokenDetails


class DurationUsage(Struct, frozen=True, tag_field="type", tag="duration"):
    """Duration in whole ``seconds``, rounded up, because clients read an integer."""

    seconds: int


class Transcription(Struct, frozen=True):
    text: str
    usage: TranscriptionUsage


class VerboseTranscription(Struct, frozen=True):
    """A transcription with metadata.

    ``duration`` is in seconds, null if the file's header does not contain it. ``language`` is the request's.
    """

    text: str
    language: str
    duration: float | None
    usage: DurationUsage
    task: Literal["transcribe"] = "transcribe"


class TranscriptDelta(Struct, frozen=True, tag_field="type", tag="transcript.text.delta"):
    delta: str


class TranscriptDone(Struct, frozen=True, tag_field="type", tag="transcript.text.done"):
    text: str
    usage: TranscriptionUsage


SYSTEM = "You are a speech recognition model."
USER = "Transcribe the audio into text. Write what is said, and nothing else."
LANGUAGE = " Its language is {language}."
PROMPT = " It continues, or is about: {prompt}"
#: Tolerance for containers that round times to milliseconds, so that rounding does not add a second.
_ROUNDING_SECONDS = 0.005
_encode = msgspec.json.Encoder().encode


def instruct_transcription(language: str | None, prompt: str | None) -> str:
    """Build the instruction to the model, with the client's language and subject."""
    instructions = USER
    if language:
        instructions += LANGUAGE.format(language=language)
    return instructions + PROMPT.format(prompt=prompt) if prompt else instructions


def parse_transcription_form(fields: Mapping[str, Any]) -> TranscriptionForm:
    """Check the fields of a form. Raises ``BadRequest`` with ``param``."""
    try:
        form = msgspec.convert(fields, TranscriptionForm, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_request(str(error), TranscriptionForm) from None
    if form.response_format in ("srt", "vtt", "diarized_json"):
        raise _unsupported_value(
            "response_format", "transcripts have no timestamps or speakers; use json, text or verbose_json"
        )
    if form.chunking_strategy not in (None, "auto"):
        raise _unsupported_value("chunking_strategy", "audio is transcribed as a whole; omit it")
    for name in LISTS:
        if getattr(form, name):
            raise _unsupported_value(name, "omit it")
    if form.stream and form.response_format not in (None, "json"):
        raise BadRequest("response_format must be json in a stream: omit it.", param="response_format")
    return form


def encode_transcription(text: str, usage: Usage) -> bytes:
    """Encode the body of a JSON response."""
    return _encode(Transcription(text, convert_usage(usage)))


def encode_verbose(text: str, language: str | None, seconds: float | None) -> bytes:
    """Encode the body of a verbose JSON response."""
    whole = ceil(max(0.0, (seconds or 0.0) - _ROUNDING_SECONDS))
    return _encode(VerboseTranscription(text, language or "unknown", seconds, DurationUsage(whole)))


def encode_delta(text: str) -> bytes:
    """Encode a server-sent event with more of the text."""
    return b"data: %b\n\n" % _encode(TranscriptDelta(text))


def encode_done(text: str, usage: Usage) -> bytes:
    """Encode the last server-sent event."""
    return b"data: %b\n\n" % _encode(TranscriptDone(text, convert_usage(usage)))


def convert_usage(usage: Usage) -> TranscriptionUsage:
    """Convert the usage of a chat to that of a transcription."""
    sound = usage.prompt_tokens_details.audio_tokens
    return TranscriptionUsage(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.total_tokens,
        TokenDetails(sound, usage.prompt_tokens - sound),
    )


def _unsupported_value(param: str, instead: str) -> BadRequest:
    return BadRequest(f"The value of '{param}' is not supported: {instead}.", param=param)
