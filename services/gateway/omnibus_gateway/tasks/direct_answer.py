"""Answers of plain chats without a task: they consume results as they arrive, and return bytes to send.

Both classes have the same methods.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from omnibus.encoding.audio import SoundFormat, encode_audio
from omnibus.tensors.handle import Item
from omnibus_gateway.media.files import new_secret_id
from omnibus_gateway.media.spoken_answers import SpokenAnswers
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.chat_response import DONE, ChatCompletionAudio
from omnibus_gateway.request.accumulator import AnswerAccumulator
from omnibus_gateway.request.request import ClientRequest
from omnibus_gateway.tasks.chat_response import (
    AudioOutputFile,
    answer_expiry,
    choose_text_event,
    encode_answer,
    encode_text_events,
    join_samples,
    keep_answer,
    open_event_stream,
    store_speech,
)

#: Items of an answer with the names of their streams.
Batch = list[tuple[str, Item]]


class SentChat(NamedTuple):
    """Plain chat in progress, with its output so far; ``keeper`` stores its audio.

    ``speaks`` is True if its task returns audio.
    """

    request: ChatRequest
    run: ClientRequest
    got: AnswerAccumulator
    keeper: SpokenAnswers | None
    speaks: bool


class WholeAnswer:
    """Answer that is sent as a whole."""

    def __init__(self, chat: SentChat) -> None:
        self._chat = chat
        self._samples: list[np.ndarray] = []
        self._spoken: ChatCompletionAudio | None = None

    def mark_accepted(self) -> None:
        """Do nothing: the answer is sent as a whole."""

    def consume_item(self, name: str, item: Item) -> None:
        """Add ``item`` to the answer."""
        self._chat.got.add_item(name, item.data, item.array)
        if name == "audio" and item.array is not None:
            self._samples.append(item.array)

    def add_batch(self, batch: Batch) -> bytes:
        """Add earlier items. Returns no bytes."""
        for name, item in batch:
            self.consume_item(name, item)
        return b""

    async def store_speech(self) -> None:
        """Store the complete audio."""
        request, _, got, keeper, _ = self._chat
        self._spoken = await store_speech(request, join_samples(self._samples, got), got, keeper)

    def keep_speech(self, format: SoundFormat, then: Callable[[], None]) -> None:
        """Store the audio in an uncompressed ``format``, and call ``then``."""
        got, keeper, id = self._chat.got, self._chat.keeper, new_secret_id("audio_")
        data, text = encode_audio(join_samples(self._samples, got), got.rate, format), got.text
        self._spoken = ChatCompletionAudio(id=id, data=data, expires_at=answer_expiry(keeper), transcript=text)
        keep_answer(keeper, id, text, data, format, then)

    def encode_end(self) -> bytes:
        """Encode the body of the answer."""
        return encode_answer(self._chat.run, self._chat.request, self._chat.got, self._spoken)


class StreamedAnswer:
    """Answer that is sent as events: see ``chat_response.stream_events``."""

    def __init__(self, chat: SentChat) -> None:
        self._got = chat.got
        self._keeper = chat.keeper
        self._stream = stream = open_event_stream(chat.run, chat.request)
        self._say = choose_text_event(stream, chat.request, chat.speaks)
        self._head = [stream.role("" if chat.request.wants_text else None)]  # until it is sent
        self._tail = b""
        self._audio: AudioOutputFile | None = None
        if chat.speaks:
            format: SoundFormat = chat.request.audio.format if chat.request.audio is not None else "pcm16"
            self._audio = AudioOutputFile(format, chat.keeper, new_secret_id("audio_"))
            self._head.append(stream.audio_start(self._audio.id))
        self._is_accepted = False

    def mark_accepted(self) -> None:
        """Allow the first events before there is output: all executors have accepted the request."""
        self._is_accepted = True

    def add_batch(self, batch: Batch) -> bytes:
        """Add items; return their events, with the first events before them."""
        if not batch and not (self._head and self._is_accepted):
            return b""
        events = [*self._take_head(), *encode_text_events(self._stream, self._say, self._got, batch)]
        samples = [item.array for _, item in batch if item.array is not None]
        if samples and self._audio is not None:
            events.append(self._stream.audio(self._audio.push_now(samples, self._got)))
        return b"".join(events)

    def _take_head(self) -> list[bytes]:
        head, self._head = self._head, []
        return head

    def keep_speech(self, format: SoundFormat, then: Callable[[], None]) -> None:
        """Store the audio in an uncompressed ``format``, and call ``then``."""
        if self._audio is None:
            then()
            return
        rest = self._stream.audio(self._audio.close_now(self._got))
        self._tail = rest + self._stream.audio_end(answer_expiry(self._keeper))
        self._audio.keep_answer(self._got.text, then)

    def encode_end(self) -> bytes:
        """Encode the last events."""
        stream, got = self._stream, self._got
        end = (stream.finish(got.finish), stream.usage(got.usage()), DONE)  # type: ignore[arg-type]
        return b"".join([*self._take_head(), self._tail, *end])


DirectAnswer = WholeAnswer | StreamedAnswer
