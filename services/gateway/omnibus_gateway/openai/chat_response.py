"""Chat completions in OpenAI's format. Source: the response types of the ``openai`` package, 3.52.

Chat completions as server-sent events. Each group of tokens is one frame, so frames are cheap to build.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Literal, NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType

from omnibus.errors import OmnibusError, ProblemDetails
from omnibus.pricing import RequestUsage
from omnibus.structured.calls import CallPart, CallReader
from omnibus_gateway.openai.errors import error_body
from omnibus_gateway.openai.options import CallDelta, CallDeltaFunction

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


class AnswerEncoders(NamedTuple):
    """Encoders of complete responses, of images and of streams, and the last bytes of a stream."""

    completion: Callable[..., bytes]
    drawn: Callable[..., bytes]
    stream: Callable[..., ChatStream]
    last: bytes = DONE


OPENAI_ENCODERS = AnswerEncoders(encode_completion, encode_image_completion, ChatStream)
