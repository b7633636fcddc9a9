"""Chat answers as server-sent events. One frame per group of tokens, so frames are cheap to build."""

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from omnibus.errors import OmnibusError, ProblemDetails
from omnibus.structured.calls import CallPart, CallReader
from services.gateway.openai.chat_response import (
    ChatCompletionImage,
    ChoiceLogprobs,
    FinishReason,
    TokenLogprob,
    Usage,
    call_id,
    choice_id,
    finish_reason,
)
from services.gateway.openai.errors import error_body
from services.gateway.openai.tools import CallDelta, CallDeltaFunction

DONE = b"data: [DONE]\n\n"

# Audio leaves in multiples of this: whole 16-bit samples, and no base64 padding inside the stream, so
# that joining the base64 texts gives the same sound as joining the decoded chunks.
_ALIGNMENT_BYTES = 6

_json = msgspec.json.Encoder().encode


class DeltaAudio(Struct, frozen=True, omit_defaults=True):
    """``data`` is base64 in JSON. ``expires_at`` in Unix seconds, alone in the last audio chunk."""

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
    """One frame of a streamed answer. ``usage`` is absent unless the client asked for it."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    system_fingerprint: str | None = None
    usage: Usage | UnsetType | None = UNSET


class ChatStream:
    """Builds the frames of one streamed answer, number ``place`` of its completion, as bytes ready to send.

    Order: ``role``, then ``text`` and, with audio, ``audio_start``, ``audio`` and ``transcript`` in any
    mix, ``audio_end``; or ``images``; then ``finish``, ``usage`` and ``DONE``. ``error`` may replace the rest at any
    time. A method may return b"": there is nothing to send yet.
    """

    def __init__(
        self,
        id: str,
        model: str,
        created: int,
        *,
        include_usage: bool = False,
        fingerprint: str = "",
        place: int = 0,
    ) -> None:
        self._answer = choice_id(id, place)
        self._calls = CallReader()
        self._head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,' % (
            _json(id),
            created,
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
        """Bytes of sound that wait for the next call."""
        return len(self._held)

    def complete(self) -> None:
        """The answer is whole; only its closing events follow."""

    def role(self, content: str | None = "") -> bytes:
        """The first frame. ``content`` is None when only audio follows."""
        delta = b'{"role":"assistant","content":%b,"refusal":null}' % _json(content)
        return self._open + delta + self._close

    def text(self, *deltas: str) -> bytes:
        """A frame for each piece of text."""
        begin, end = self._text, self._end_text
        return b"".join([part for delta in deltas for part in (begin, _json(delta), end)])

    def reasoning(self, delta: str) -> bytes:
        return b"".join((self._open, b'{"reasoning_content":', _json(delta), self._end_text))

    def calls(self, text: str) -> bytes:
        """More calls of tools, as ``omnibus.structured.calls`` has them."""
        return b"".join(self.call_frames(text))

    def call_frames(self, text: str, known: str = "") -> list[bytes]:
        """Frames of ``text``, more calls of tools; ``known`` comes before it, and the client has it."""
        for _ in self._calls.read(known):
            pass
        deltas = [_call_delta(self._answer, part) for part in self._calls.read(text)]
        return [b"".join((self._open, b'{"tool_calls":[', _json(each), b"]", self._end_text)) for each in deltas]

    def logprobs(self, tokens: list[TokenLogprob]) -> bytes:
        """Probabilities of the tokens of the frames before it."""
        found = _json(ChoiceLogprobs(tokens))
        return b"".join((self._open, b'{},"logprobs":', found, b',"finish_reason":null}]', self._tail))

    def audio_start(self, audio_id: str) -> bytes:
        return b"".join((self._audio, b'"id":', _json(audio_id), self._end_audio))

    def audio(self, data: bytes) -> bytes:
        """The next bytes of a sound file. Up to five wait for the next call."""
        sound = self._held + data
        ready = len(sound) - len(sound) % _ALIGNMENT_BYTES
        self._held = sound[ready:]
        return self._audio_frame(sound[:ready])

    def transcript(self, *deltas: str) -> bytes:
        """A frame for each piece of what is spoken."""
        begin, end = self._audio + b'"transcript":', self._end_audio
        return b"".join([part for delta in deltas for part in (begin, _json(delta), end)])

    def spoken_text(self, *deltas: str) -> bytes:
        """A frame for each piece of text that is shown and spoken: as content, and as the transcript of the audio."""
        begin, middle, end, said = self._text, b',"audio":{"transcript":', self._end_audio, map(_json, deltas)
        return b"".join([part for each in said for part in (begin, each, middle, each, end)])

    def audio_end(self, expires_at: int) -> bytes:
        """The bytes still held, if any, and the frame with only the expiry (Unix seconds)."""
        rest, self._held = self._audio_frame(self._held), b""
        return b"".join((rest, self._audio, b'"expires_at":%d' % expires_at, self._end_audio))

    def images(self, images: list[ChatCompletionImage]) -> bytes:
        """Pictures, all at once."""
        return b"".join((self._open, b'{"images":', _json(images), self._end_text))

    def finish(self, reason: FinishReason) -> bytes:
        reason = finish_reason(reason, bool(self._calls.count))
        return self._open + b'{},"logprobs":null,"finish_reason":%b}]' % _json(reason) + self._tail

    def usage(self, usage: Usage) -> bytes:
        """The usage frame, or b"" when the client did not ask for it."""
        if not self._include_usage:
            return b""
        return b"".join((self._head, b'],"usage":', _json(usage), b"}\n\n"))

    def error(self, error: OmnibusError | ProblemDetails, request_id: str = "") -> bytes:
        """An error in the middle of the stream; ``DONE`` does not follow it."""
        return b"".join((b"data: ", error_body(error, request_id), b"\n\n"))

    def _audio_frame(self, data: bytes) -> bytes:
        return b"".join((self._audio, b'"data":', _json(data), self._end_audio)) if data else b""


def _call_delta(answer: str, part: CallPart) -> CallDelta:
    """``part`` of a call: the first one says which function is called."""
    if not part.name:
        return CallDelta(part.number, CallDeltaFunction(part.arguments))
    function = CallDeltaFunction(part.arguments, part.name)
    return CallDelta(part.number, function, call_id(answer, part.number), "function")
