"""Plain chats, answered by event loop callbacks without a task per request.

A chat behaves as in ``omnibus_gateway.api.chat_completions``, but waits in another way: its answer consumes results as
they arrive, and returns bytes to send. Eligible are plain chats (``omnibus_gateway.openai.chat_request``) to models
whose graph follows from the kind of request.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from omnibus import tracing
from omnibus.encoding.audio import SoundFormat, encode_audio
from omnibus.errors import ClientClosed, OmnibusError
from omnibus.metrics import GATEWAY
from omnibus.tensors.handle import Item
from omnibus_gateway.core import AnswerAccumulator, ClientRequest, ItemStream, RequestFactory
from omnibus_gateway.http.failures import Failure
from omnibus_gateway.http.response import (
    JSON,
    PARSED_BODY,
    DirectConnection,
    DirectResponse,
    DirectRoute,
    OpenRequests,
    run_headers,
)
from omnibus_gateway.media.files import new_secret_id
from omnibus_gateway.media.spoken_answers import UNCOMPRESSED_FORMATS, SpokenAnswers
from omnibus_gateway.openai import openapi
from omnibus_gateway.openai.chat_request import ChatRequest, is_plain_chat
from omnibus_gateway.openai.chat_response import DONE, ChatCompletionAudio
from omnibus_gateway.openai.errors import client_error
from omnibus_gateway.openai.messages import parse_chat_media
from omnibus_gateway.tasks.chat import Chat, Chats, PlainChat
from omnibus_gateway.tasks.chat_response import (
    AudioOutputFile,
    answer_expiry,
    choose_text_event,
    encode_answer,
    encode_text_events,
    join_samples,
    keep_answer,
    open_event_stream,
    open_output_streams,
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


class DirectChatRoute(DirectRoute):
    """Answers plain chats to models of the plan. The general route handles ``chats`` of apps."""

    def __init__(
        self,
        runs: RequestFactory,
        chat: Chat,
        open_requests: OpenRequests,
        allows: Callable[[bytes], bool] | None = None,
        chats: Chats | None = None,
    ) -> None:
        super().__init__(openapi.PATH, open_requests, allows)
        self.chat = chat
        self._runs = runs
        self._chats = chats

    def begin(self, connection: DirectConnection, body: bytes) -> bool:
        plain = self._prepare(connection, body)
        if plain is None:
            return False
        try:
            run = self.chat.open_request(plain.request.model, plain.request.seed)
        except OmnibusError:
            return False
        DirectChat(self, connection, plain, run).start()
        return True

    def _prepare(self, connection: DirectConnection, body: bytes) -> PlainChat | None:
        """Return the chat in ``body``; None if invalid or not plain, for the general route.

        That route gets the parsed chat.
        """
        if not self._is_free() or self._runs.room.waiting:
            return None
        try:
            request = connection.scope[PARSED_BODY] = parse_chat_media(body)
            return self.chat.prepare_plain(request) if self._takes_request(request) else None
        except OmnibusError:
            return None

    def _is_free(self) -> bool:
        """Return True if a request needs no turn and no trace."""
        runs = self._runs
        return (
            runs.admission is None
            and tracing.tracer is None
            and not self.open_requests.stopping
            and runs.dispatcher.inflight_count < runs.settings.max_inflight
        )

    def _takes_request(self, request: ChatRequest) -> bool:
        return (
            is_plain_chat(request)
            and not (request.stream and not self._is_plain_stream(request))
            and not (self._chats is not None and self._chats.is_served_by_app(request.model))
        )

    def _is_plain_stream(self, request: ChatRequest) -> bool:
        """Return True for a stream without promises and slow encoding of audio."""
        plain_format = request.audio is None or request.audio.format in UNCOMPRESSED_FORMATS
        return plain_format and self._runs.settings.continue_streams != "always"


class DirectChat(DirectResponse):
    """One running chat, from its request to the last byte."""

    def __init__(
        self, route: DirectChatRoute, connection: DirectConnection, plain: PlainChat, run: ClientRequest
    ) -> None:
        super().__init__(route, connection)
        self._chat = route.chat
        self._plain = plain
        self._request = plain.request
        self._run = run
        self._headers = partial(run_headers, run)
        self._loop = asyncio.get_running_loop()
        self._streams: dict[str, ItemStream] = {}
        self._deadline: asyncio.TimerHandle | None = None
        self._finishing: asyncio.Task[None] | None = None  # of an answer whose speech is compressed
        self._scheduled = self._is_finishing = self._ended = False

    @property
    def id(self) -> str:
        return self._run.id

    def start(self) -> None:
        """Send the request; a failure becomes the answer."""
        try:
            self._answer: DirectAnswer = self._send_request()
        except Exception as error:  # noqa: BLE001 the answer contains it
            self._fail(error)
            return
        self._deadline = self._loop.call_later(max(0.0, self._run.seconds_left), self._on_deadline)
        for stream in self._streams.values():
            if stream.ended or stream.has_ready:
                self.schedule()

    def _send_request(self) -> DirectAnswer:
        run, request = self._run, self._request
        got = run.open_answer()
        output = self._chat.begin_plain(run, self._plain)
        self._streams = open_output_streams(output)
        for stream in self._streams.values():
            stream.notify = self.schedule
        sent_chat = SentChat(request, run, got, self._chat.spoken, output.audio is not None)
        if not request.stream:
            return self._open_whole_answer(sent_chat)
        answer = StreamedAnswer(sent_chat)

        def begin_events() -> None:
            answer.mark_accepted()
            self.schedule()

        run.notify_when_accepted(begin_events)
        return answer

    def _open_whole_answer(self, sent_chat: SentChat) -> WholeAnswer:
        """Return an answer that consumes items on arrival, without wake-ups."""
        answer = WholeAnswer(sent_chat)

        def consume_item(name: str, item: Item) -> None:
            try:
                answer.consume_item(name, item)
            except Exception as error:  # noqa: BLE001 the answer contains it
                self._fail(error)

        for name, stream in self._streams.items():
            stream.consume_by(partial(consume_item, name))
        return answer

    def schedule(self) -> None:
        """Handle all arrived items, once in this turn of the event loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._advance)

    def on_writable(self) -> None:
        self.schedule()

    def _advance(self) -> None:
        self._scheduled = False
        if self._ended or self._is_finishing or self.is_write_paused:
            return
        try:
            self._send_ready()
            if self._is_complete():
                self._finish()
        except Exception as error:  # noqa: BLE001 the answer contains it
            self._fail(error)

    def _send_ready(self) -> None:
        batch = [(name, item) for name, stream in self._streams.items() for item in stream.take_ready()]
        events = self._answer.add_batch(batch)
        if events:
            self.send_events(events, self._headers)

    def _is_complete(self) -> bool:
        """Return True if all streams ended and were read. Raises the error of a failed stream."""
        complete = True
        for stream in self._streams.values():
            if stream.ended:
                stream.take_ready()  # raises once all earlier items were taken
            else:
                complete = False
        return complete

    # The end

    def _finish(self) -> None:
        """Send the end of the answer: at once, or after storing its speech."""
        audio = self._request.audio if self._request.wants_audio else None
        if audio is None:
            self._send_end()
        elif isinstance(self._answer, WholeAnswer) and audio.format not in UNCOMPRESSED_FORMATS:
            self._is_finishing = True
            self._finishing = self._loop.create_task(self._finish_compressed(self._answer))
        else:
            self._is_finishing = True
            self._answer.keep_speech(audio.format, self._finish_kept)

    def _finish_kept(self) -> None:
        if self._ended:
            return
        try:
            self._send_end()
        except Exception as error:  # noqa: BLE001 the answer contains it
            self._fail(error)

    async def _finish_compressed(self, answer: WholeAnswer) -> None:
        try:
            await answer.store_speech()
            self._send_end()
        except Exception as error:  # noqa: BLE001 the answer contains it
            self._fail(error)

    def _send_end(self) -> None:
        """End the request, whose answer is complete, and send the rest."""
        end = self._answer.encode_end()
        self._close_work()
        self._run.end("done")
        GATEWAY.request_counter(self._request.model, "ok").inc()
        if self._request.stream:
            self.send_events(end, self._headers, last=True)
        else:
            self.send_body(JSON, end, self._headers())

    def _close_work(self) -> None:
        self._ended = True
        if self._deadline is not None:
            self._deadline.cancel()
        for stream in self._streams.values():
            stream.notify = stream.consumer = None
            stream.stop()

    def _on_deadline(self) -> None:
        self._fail(self._run.deadline_error(), "expired")

    def on_left(self) -> None:
        if not self._ended:
            self._abort(ClientClosed("the client left"), "cancelled")
            GATEWAY.request_counter(self._request.model, "cancelled").inc()

    def _abort(self, error: Exception, status: str) -> None:
        self._close_work()
        if self._finishing is not None:
            self._finishing.cancel()
        self._run.end_with(error, status)

    def _fail(self, error: Exception, status: str = "failed") -> None:
        """Answer with ``error``."""
        if self._ended:
            return
        api_error = client_error(error, self.id)
        was_cancelled = self._run.status == "cancelled"
        self._abort(error, status)
        GATEWAY.request_counter(self._request.model, "cancelled" if was_cancelled else api_error.code).inc()
        ran = bool(self._run.segments)
        failure = Failure(api_error.to_problem(), api_error.status, self._request.model, ran)
        self._open.failures.add_failure("POST", openapi.PATH, self.id, failure)
        self.send_error(api_error)
