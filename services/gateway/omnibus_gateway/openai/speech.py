"""Requests and events of ``/v1/audio/speech``.

Source: the types of the ``openai`` package, 3.52, and for the events, OpenAI's documentation.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from omnibus.encoding.audio import MAX_SPEED, MIN_SPEED, SoundFormat
from omnibus_gateway.openai.chat_request import Count, VoiceId
from omnibus_gateway.openai.parse import decode_body

PATH = "/v1/audio/speech"

SpeechFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]


class SpeechRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text to speak unchanged. None means that the client did not set the field."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input: Annotated[str, Meta(min_length=1, max_length=4096)]
    voice: Annotated[str, Meta(min_length=1, max_length=128)] | VoiceId
    #: Description of the manner of speech.
    instructions: Annotated[str, Meta(max_length=4096)] | None = None
    #: ``pcm`` is 16-bit little-endian mono at the model's sample rate. The default is ``mp3``.
    response_format: SpeechFormat | None = None
    speed: Annotated[float, Meta(ge=MIN_SPEED, le=MAX_SPEED)] | None = None
    stream_format: Literal["sse", "audio"] | None = None

    # Extras. ``max_tokens`` limits the codec codes, which bounds the seconds of audio.
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    max_tokens: Count | None = None

    @property
    def format(self) -> SoundFormat:
        return "pcm16" if self.response_format == "pcm" else self.response_format or "mp3"

    @property
    def voice_name(self) -> str:
        """The name or id of the voice."""
        return self.voice if isinstance(self.voice, str) else self.voice.id


class SpeechUsage(Struct, frozen=True):
    """Token counts of the text, including its instructions, and of the audio."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class SpeechDelta(Struct, frozen=True, tag_field="type", tag="speech.audio.delta"):
    """The next bytes of the file, base64 in JSON."""

    audio: bytes


class SpeechDone(Struct, frozen=True, tag_field="type", tag="speech.audio.done"):
    usage: SpeechUsage


_DECODER = msgspec.json.Decoder(SpeechRequest)
_encode = msgspec.json.Encoder().encode


def parse_speech_request(body: bytes) -> SpeechRequest:
    """Decode and check a request. Raises ``BadRequest`` with ``param``."""
    return decode_body(_DECODER, body)


def encode_event(event: SpeechDelta | SpeechDone) -> bytes:
    """Encode one server-sent event."""
    return b"data: %b\n\n" % _encode(event)
