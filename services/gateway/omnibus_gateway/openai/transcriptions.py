"""Requests, responses and events of ``/v1/audio/transcriptions`` and ``/v1/audio/translations``.

Source: the ``openai`` package's types, 3.52.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from omnibus.errors import BadRequest
from omnibus_gateway.openai.chat_request import Count
from omnibus_gateway.openai.chat_response import Usage
from omnibus_gateway.openai.parse import invalid_request

PATH, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"

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

    #: Parts with times in a recognizer's verbose transcript. The default is ``segment``.
    timestamp_granularities: list[Literal["word", "segment"]] | None = None

    # Accepted only with values that change nothing.
    chunking_strategy: str | None = None
    include: list[str] | None = None
    keywords: list[str] | None = None
    languages: list[str] | None = None
    known_speaker_names: list[str] | None = None
    known_speaker_references: list[str] | None = None


class TranslationForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a translation except its file, see ``TranscriptionForm``."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    #: English text before the audio, or its subject.
    prompt: Annotated[str, Meta(max_length=4096)] | None = None
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None

    # Extras.
    max_tokens: Count | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None


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


class Translation(Struct, frozen=True):
    text: str


class VerboseSegment(Struct, frozen=True, kw_only=True):
    """A part of a transcript, see ``omnibus.task.library.recognition.TranscriptSegment``."""

    id: int
    seek: int = 0
    start: float
    end: float
    text: str
    tokens: list[int] = []
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 0.0
    no_speech_prob: float = 0.0


class VerboseWord(Struct, frozen=True):
    """A word, and its seconds in the recording."""

    word: str
    start: float
    end: float


class VerboseTranscription(Struct, frozen=True):
    """A transcription with metadata.

    ``duration`` is in seconds, null if the file's header does not contain it. ``language`` is the request's, or that
    which a recognizer detected. Only recognizers return ``segments`` and ``words``.
    """

    text: str
    language: str
    duration: float | None
    usage: DurationUsage
    segments: list[VerboseSegment] | UnsetType = UNSET
    words: list[VerboseWord] | UnsetType = UNSET
    task: Literal["transcribe"] = "transcribe"


class VerboseTranslation(Struct, frozen=True):
    """A translation with metadata, as ``VerboseTranscription``."""

    text: str
    duration: float | None
    segments: list[VerboseSegment] | UnsetType = UNSET
    language: Literal["english"] = "english"
    task: Literal["translate"] = "translate"


class TranscriptDelta(Struct, frozen=True, tag_field="type", tag="transcript.text.delta"):
    delta: str


class TranscriptDone(Struct, frozen=True, tag_field="type", tag="transcript.text.done"):
    text: str
    usage: TranscriptionUsage


SYSTEM = "You are a speech recognition model."
USER = "Transcribe the audio into text. Write what is said, and nothing else."
TRANSLATE = "Translate the speech in the audio into English. Write the translation, and nothing else."
LANGUAGE = " Its language is {language}."
PROMPT = " It continues, or is about: {prompt}"
#: Tolerance for containers that round times to milliseconds, so that rounding does not add a second.
_ROUNDING_SECONDS = 0.005
_encode = msgspec.json.Encoder().encode
F = TypeVar("F", bound=Struct)


def instruct_transcription(language: str | None, prompt: str | None, *, translates: bool = False) -> str:
    """Build the instruction to a model that chats, with the client's language and subject."""
    instructions = TRANSLATE if translates else USER
    if language:
        instructions += LANGUAGE.format(language=language)
    return instructions + PROMPT.format(prompt=prompt) if prompt else instructions


def parse_transcription_form(fields: Mapping[str, Any]) -> TranscriptionForm:
    """Check the fields of a form. Raises ``BadRequest`` with ``param``."""
    form = _convert_form(fields, TranscriptionForm)
    if form.response_format == "diarized_json":
        raise _unsupported_value("response_format", "transcripts have no speakers; use json, text or verbose_json")
    if form.chunking_strategy not in (None, "auto"):
        raise _unsupported_value("chunking_strategy", "audio is cut in pauses; omit it")
    for name in LISTS:
        if name != "timestamp_granularities" and getattr(form, name):
            raise _unsupported_value(name, "omit it")
    if form.stream and form.response_format not in (None, "json"):
        raise BadRequest("response_format must be json in a stream: omit it.", param="response_format")
    return form


def parse_translation_form(fields: Mapping[str, Any]) -> TranscriptionForm:
    """Check the fields of a form for a translation. Raises ``BadRequest`` with ``param``."""
    return TranscriptionForm(**msgspec.structs.asdict(_convert_form(fields, TranslationForm)))


def _convert_form(fields: Mapping[str, Any], kind: type[F]) -> F:
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_request(str(error), kind) from None


def require_chat_values(form: TranscriptionForm) -> None:
    """Raise ``BadRequest`` for values that a chat cannot obey."""
    if form.response_format in ("srt", "vtt"):
        raise _unsupported_value(
            "response_format", "this model's transcripts have no timestamps; use json, text or verbose_json"
        )
    if form.timestamp_granularities:
        raise _unsupported_value("timestamp_granularities", "omit it")


def require_recognizer_values(form: TranscriptionForm) -> None:
    """Raise ``BadRequest`` for values of a form that a recognizer cannot obey."""
    if form.timestamp_granularities and form.response_format != "verbose_json":
        raise BadRequest("timestamp_granularities needs response_format verbose_json.", param="timestamp_granularities")


def encode_transcription(text: str, usage: Usage) -> bytes:
    """Encode the body of a JSON response."""
    return _encode(Transcription(text, convert_usage(usage)))


def encode_verbose(
    text: str,
    language: str | None,
    seconds: float | None,
    segments: list[VerboseSegment] | UnsetType = UNSET,
    words: list[VerboseWord] | UnsetType = UNSET,
) -> bytes:
    """Encode the body of a verbose JSON response."""
    whole = ceil(max(0.0, (seconds or 0.0) - _ROUNDING_SECONDS))
    return _encode(VerboseTranscription(text, language or "unknown", seconds, DurationUsage(whole), segments, words))


def encode_translation(text: str) -> bytes:
    """Encode the body of a JSON response with a translation."""
    return _encode(Translation(text))


def encode_verbose_translation(
    text: str, seconds: float | None, segments: list[VerboseSegment] | UnsetType = UNSET
) -> bytes:
    """Encode the body of a verbose JSON response with a translation."""
    return _encode(VerboseTranslation(text, seconds, segments))


def number_segments(segments: Sequence[Mapping[str, Any]]) -> list[VerboseSegment]:
    """Convert ``TranscriptSegment``s of a recognizer."""
    return [msgspec.convert({"id": number, **segment}, VerboseSegment) for number, segment in enumerate(segments)]


def format_srt(segments: Sequence[VerboseSegment]) -> str:
    """Format subtitles as SubRip."""
    return "".join(
        f"{segment.id + 1}\n{_format_time(segment.start, ',')} --> {_format_time(segment.end, ',')}\n"
        f"{segment.text.strip()}\n\n"
        for segment in segments
    )


def format_vtt(segments: Sequence[VerboseSegment]) -> str:
    """Format subtitles as WebVTT (W3C, 2019). Text that would be an arrow of a cue is replaced, as in Whisper."""
    return "WEBVTT\n\n" + "".join(
        f"{_format_time(segment.start, '.')} --> {_format_time(segment.end, '.')}\n"
        f"{segment.text.strip().replace('-->', '->')}\n\n"
        for segment in segments
    )


def _format_time(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}{point}{rest % 1000:03d}"


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
