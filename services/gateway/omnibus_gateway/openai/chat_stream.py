"""Chat completions as server-sent events. Each group of tokens is one frame, so frames are cheap to build."""

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from omnibus.errors import OmnibusError, ProblemDetails
from omnibus.structured.calls import CallPart, CallReader
from omnibus_gateway.openai.chat_response import (
    ChatCompletionImage,
    ChoiceLogprobs,
    FinishReason,
    TokenLogprob,
    Usage,
    call_id,
    choice_id,
    finish_reason,
)
from omnibus_gateway.openai.errors import error_body
from omnibus_gateway.openai.tools import CallDelta, CallDeltaFunction

DONE = b"data: [DONE]\n\n"

# Audio is sent in multiples of this: whole 16-bit samples, and no base64 padding inside the stream. So joining the
# base64 texts gives the same audio as joining the decoded chunks.
_ALIGNMENT_BYTES = 6

_json = msgspec.json.Encoder().encode


class DeltaAudio(Struct, frozen=True, omit_defaults=True):
    """Audio of a chunk. ``data`` is base64 in JSON. Only the last chunk has ``expires_at``, in Unix seconds."""

    id: str | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    transcript: str | UnsetType = UNSET
    expires_at: int | UnsetType = UNSET


class Delta(Struct, frozen=True, omit_defaults=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    audio: DeltaAudio | UnsetType = UNSET
    images: list[ChatCompletionImage] | UnsetType = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True):
    delta: Delta
    finish_reason: FinishReason | None = None
    index: int = 0
    logprobs: ChoiceLogprobs | None = None


class ChatCompletionChunk(Struct, frozen=True):
    """One frame of a streamed completion. ``usage`` is absent unless the client requests it."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    system_fingerprint: str | None = None
    usage: Usage | UnsetType | None = UNSET


class ChatStream:
    """Builder of the frames of one streamed answer. ``place`` is its index in the completion.

    Order: ``role``, then ``text`` and, with audio, ``audio_start``, ``audio`` and ``transcript`` in any order, then
    ``audio_end``. An answer of images has ``images`` instead. ``finish``, ``usage`` and ``DONE`` end the stream.
    ``error`` may replace the remaining frames at any time. A method returns b"" if there is nothing to send yet.
    """

    def __init__(
        self,
        id: str,
        model: str,
        created_at: int,
        *,
        include_usage: bool = False,
        fingerprint: str = "",
        place: int = 0,
    ) -> None:
        self._answer = choice_id(id, place)
        self._calls = CallReader()
        self._head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,' % (
            _json(id),
            created_at,
            _json(model),
        )
        self._head += b'"system_fingerprint":%b,"choices":[' % _json(fingerprint or None)
        self._include_usage = include_usage
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._open = self._head + b'{"index":%d,"delta":' % place
        self._close = b',"logprobs":null,"finish_reason":null}]' + self._tail
        self._text = self._open + b'{"content":'
        self._audio = self._open + b'{"audio":{'
        self._end_text = b"}" + self._close
        self._end_audio = b"}}" + self._close
        self._held = b""

    @property
    def held_bytes(self) -> int:
        """Bytes of audio that wait for the next call."""
        return len(self._held)

    def complete(self) -> None:
        """Mark the answer as complete. Only its closing events follow."""

    def role(self, content: str | None = "") -> bytes:
        """Build the first frame. ``content`` is None if only audio follows."""
        delta = b'{"role":"assistant","content":%b,"refusal":null}' % _json(content)
        return self._open + delta + self._close

    def text(self, *deltas: str) -> bytes:
        """Build a frame for each piece of text."""
        begin, end = self._text, self._end_text
        return b"".join([part for delta in deltas for part in (begin, _json(delta), end)])

    def reasoning(self, delta: str) -> bytes:
        return b"".join((self._open, b'{"reasoning_content":', _json(delta), self._end_text))

    def calls(self, text: str) -> bytes:
        """Build the frames of further tool calls, in the format of ``omnibus.structured.calls``."""
        return b"".join(self.call_frames(text))

    def call_frames(self, text: str, known_text: str = "") -> list[bytes]:
        """Build the frames of ``text``, further tool calls. The client already has ``known_text`` before it."""
        for _ in self._calls.read(known_text):
            pass
        deltas = [_call_delta(self._answer, part) for part in self._calls.read(text)]
        return [b"".join((self._open, b'{"tool_calls":[', _json(each), b"]", self._end_text)) for each in deltas]

    def logprobs(self, tokens: list[TokenLogprob]) -> bytes:
        """Build a frame with the probabilities of the preceding tokens."""
        logprobs_json = _json(ChoiceLogprobs(tokens))
        return b"".join((self._open, b'{},"logprobs":', logprobs_json, b',"finish_reason":null}]', self._tail))

    def audio_start(self, audio_id: str) -> bytes:
        return b"".join((self._audio, b'"id":', _json(audio_id), self._end_audio))

    def audio(self, data: bytes) -> bytes:
        """Build a frame of the next bytes of an audio file. Up to five bytes wait for the next call."""
        sound = self._held + data
        ready = len(sound) - len(sound) % _ALIGNMENT_BYTES
        self._held = sound[ready:]
        return self._audio_frame(sound[:ready])

    def transcript(self, *deltas: str) -> bytes:
        """Build a frame for each piece of the transcript."""
        begin, end = self._audio + b'"transcript":', self._end_audio
        return b"".join([part for delta in deltas for part in (begin, _json(delta), end)])

    def spoken_text(self, *deltas: str) -> bytes:
        """Build a frame for each piece of text. It is both content and transcript of the audio."""
        begin, middle, end, encoded_deltas = self._text, b',"audio":{"transcript":', self._end_audio, map(_json, deltas)
        return b"".join([part for each in encoded_deltas for part in (begin, each, middle, each, end)])

    def audio_end(self, expires_at: int) -> bytes:
        """Build the last two frames of audio: the remaining bytes, if any, and the expiry (Unix seconds)."""
        rest, self._held = self._audio_frame(self._held), b""
        return b"".join((rest, self._audio, b'"expires_at":%d' % expires_at, self._end_audio))

    def images(self, images: list[ChatCompletionImage]) -> bytes:
        """Build one frame with all images."""
        return b"".join((self._open, b'{"images":', _json(images), self._end_text))

    def finish(self, reason: FinishReason) -> bytes:
        reason = finish_reason(reason, bool(self._calls.count))
        return self._open + b'{},"logprobs":null,"finish_reason":%b}]' % _json(reason) + self._tail

    def usage(self, usage: Usage) -> bytes:
        """Build the usage frame; b"" if the client did not request it."""
        if not self._include_usage:
            return b""
        return b"".join((self._head, b'],"usage":', _json(usage), b"}\n\n"))

    def error(self, error: OmnibusError | ProblemDetails, request_id: str = "") -> bytes:
        """Build the frame of an error in the middle of the stream. ``DONE`` does not follow it."""
        return b"".join((b"data: ", error_body(error, request_id), b"\n\n"))

    def _audio_frame(self, data: bytes) -> bytes:
        return b"".join((self._audio, b'"data":', _json(data), self._end_audio)) if data else b""


def _call_delta(answer: str, part: CallPart) -> CallDelta:
    """Build the delta of ``part``. Only the first part of a call has the function's name."""
    if not part.name:
        return CallDelta(part.number, CallDeltaFunction(part.arguments))
    function = CallDeltaFunction(part.arguments, part.name)
    return CallDelta(part.number, function, call_id(answer, part.number), "function")
