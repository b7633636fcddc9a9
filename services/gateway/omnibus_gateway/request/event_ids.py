"""Ids of a streamed chat's events, from which another gateway can continue.

The number of tokens per event depends on the executor's load, so events are not counted. Instead an event's id contains
the amount of the answer that was sent with it: ``<token>.<characters>.<digest>.<bytes of sound>.<digest>.<closing
events>``. If there are any, ``.<characters of reasoning>.<digest>.<characters of calls>.<digest>`` follow. The gateway
that continues generates the answer again, skips that amount and checks the digests: a wrong continuation fails.
"""

import re
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import NamedTuple

from omnibus.errors import BadRequest, CannotContinue
from omnibus_gateway.openai.chat_response import FinishReason, TokenLogprob, Usage
from omnibus_gateway.openai.chat_stream import ChatStream

#: Bytes of a digest: enough to distinguish answers to one request. A client gains nothing by forging its own position.
_DIGEST_BYTES = 4
#: Formats whose bytes follow from the samples one by one. A sample that differs by a step moves nothing after it, so
#: they are only counted. A codec's output for such samples differs in length, so its bytes are compared.
_COUNTED = ("pcm16", "wav")
#: Numbers as ids contain them, without leading zeros: each position has one id.
_NUMBER = r"(0|[1-9]\d{0,14})"
_PART = rf"\.{_NUMBER}\.([0-9a-f]{{8}})"
_ID = re.compile(rf"([A-Za-z0-9_-]{{1,64}}){_PART}{_PART}\.(0|[1-9]\d{{0,2}})(?:{_PART}{_PART})?", re.ASCII)


class Position(NamedTuple):
    """Amount of an answer that was sent.

    It counts characters of text, bytes of its audio file and closing events, and characters of reasoning and of tool
    calls."""

    text: int
    text_digest: str
    sound: int
    sound_digest: str
    closing: int
    reasoning: int = 0
    reasoning_digest: str = ""
    calls: int = 0
    calls_digest: str = ""


def parse_event_id(text: str) -> tuple[str, Position]:
    """Return the token and the position in an event's id. Raises ``BadRequest``."""
    match = _ID.fullmatch(text)
    if match is None:
        raise BadRequest("the event id must be one of a streamed answer", param="Last-Event-ID")
    token, characters, text_digest, sound, sound_digest, closing, *more = match.groups()
    reasoning, reasoning_digest, calls, calls_digest = more if more[0] is not None else ("0", "", "0", "")
    return token, Position(
        int(characters), text_digest, int(sound), sound_digest, int(closing),
        int(reasoning), reasoning_digest, int(calls), calls_digest,
    )  # fmt: skip


class _SentCounter:
    """Counter of one part of the answer: the amount sent, and the amount to skip."""

    def __init__(self, skip: int, digest: str, exact: bool) -> None:
        self.sent = 0
        self.skip = skip
        self._expected = digest
        self._exact = exact
        self._hash = blake2b(digest_size=_DIGEST_BYTES)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def count_sent(self, length: int, data: bytes) -> None:
        """Add ``length`` to the amount sent."""
        self.sent += length
        if self._exact:
            self._hash.update(data)

    def skip_sent(self, length: int, data: bytes) -> None:
        """Skip ``length`` that the client has. Raises ``CannotContinue`` at the end if it differs."""
        self.count_sent(length, data)
        self.skip -= length
        if not self.skip and self.digest != self._expected:
            raise CannotContinue(_DIVERGED_MESSAGE)

    def skip_text(self, delta: str) -> str:
        """Count ``delta``; returns the part that the client does not have."""
        known_chars = min(self.skip, len(delta))
        if known_chars:
            self.skip_sent(known_chars, delta[:known_chars].encode())
            delta = delta[known_chars:]
        self.count_sent(len(delta), delta.encode())
        return delta


_DIVERGED_MESSAGE = "the answer came out differently this time, so it cannot be continued: send the request again"


class NumberedStream:
    """A ``ChatStream`` whose events have ids; it skips events up to the position ``after``."""

    def __init__(self, stream: ChatStream, token: str, format: str, after: Position | None) -> None:
        self._stream = stream
        self._token = token.encode()
        self._resumed = after is not None
        self._text = _SentCounter(after.text if after else 0, after.text_digest if after else "", True)
        self._sound = _SentCounter(
            after.sound if after else 0, after.sound_digest if after else "", format not in _COUNTED
        )
        self._reasoning = _SentCounter(after.reasoning if after else 0, after.reasoning_digest if after else "", True)
        self._calls = _SentCounter(after.calls if after else 0, after.calls_digest if after else "", True)
        self._unsent = b""  # audio that the stream holds back
        self._closing = 0
        self._skip_closing = after.closing if after else 0

    # Events, as those of ``ChatStream``

    def role(self, content: str | None = "") -> bytes:
        return b"" if self._resumed else self._stream.role(content)

    def audio_start(self, audio_id: str) -> bytes:
        return b"" if self._resumed else self._stream.audio_start(audio_id)

    def text(self, *deltas: str) -> bytes:
        return self._add_text_events(self._stream.text, deltas)

    def _add_text_events(self, encode: Callable[[str], bytes], deltas: Iterable[str]) -> bytes:
        """Return an event with an id for each of the new ``deltas``."""
        fresh = map(self._text.skip_text, deltas)
        return b"".join([self._add_event_id(encode(each)) for each in fresh if each])

    def reasoning(self, delta: str) -> bytes:
        fresh = self._reasoning.skip_text(delta)
        return self._add_event_id(self._stream.reasoning(fresh)) if fresh else b""

    def calls(self, text: str) -> bytes:
        fresh = self._calls.skip_text(text)
        frames = self._stream.call_frames(fresh, text.removesuffix(fresh))
        return b"".join([*frames[:-1], self._add_event_id(frames[-1])]) if frames else b""

    def logprobs(self, tokens: list[TokenLogprob]) -> bytes:
        raise CannotContinue("an answer with logprobs cannot be continued: send the request again")

    def transcript(self, *deltas: str) -> bytes:
        return self._add_text_events(self._stream.transcript, deltas)

    def spoken_text(self, *deltas: str) -> bytes:
        return self._add_text_events(self._stream.spoken_text, deltas)

    def audio(self, data: bytes) -> bytes:
        known_bytes = min(self._sound.skip, len(data))
        if known_bytes:
            self._sound.skip_sent(known_bytes, data[:known_bytes])
        self._unsent += data[known_bytes:]
        frame = self._stream.audio(data[known_bytes:])
        self._count_audio(len(self._unsent) - self._stream.held_bytes)
        return self._add_event_id(frame) if frame else b""

    def audio_end(self, expires_at: int) -> bytes:
        frames = self._stream.audio_end(expires_at)
        if not self._unsent:
            return self._close_event(frames)
        rest, _, end = frames.partition(b"\n\n")
        self._count_audio(len(self._unsent))
        return self._add_event_id(rest + b"\n\n") + self._close_event(end)

    def complete(self) -> None:
        """Finish the answer. Raises ``CannotContinue`` if the client has more of it."""
        if any(part.skip for part in (self._text, self._sound, self._reasoning, self._calls)):
            raise CannotContinue(_DIVERGED_MESSAGE)

    def finish(self, reason: FinishReason) -> bytes:
        return self._close_event(self._stream.finish(reason))

    def usage(self, usage: Usage) -> bytes:
        frame = self._stream.usage(usage)
        return self._close_event(frame) if frame else b""

    # Ids

    def _count_audio(self, length: int) -> None:
        self._sound.count_sent(length, self._unsent[:length])
        self._unsent = self._unsent[length:]

    def _close_event(self, frame: bytes) -> bytes:
        self._closing += 1
        return b"" if self._closing <= self._skip_closing else self._add_event_id(frame)

    def _add_event_id(self, frame: bytes) -> bytes:
        text, sound = self._text, self._sound
        place = f".{text.sent}.{text.digest}.{sound.sent}.{sound.digest}.{self._closing}"
        reasoning, calls = self._reasoning, self._calls
        if reasoning.sent or calls.sent:
            place += f".{reasoning.sent}.{reasoning.digest}.{calls.sent}.{calls.digest}"
        return b"".join((b"id: ", self._token, place.encode(), b"\n", frame))
