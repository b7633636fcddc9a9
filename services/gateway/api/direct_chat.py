"""Plain chats, answered in the turns of the event loop in which their request and the results come.

A chat is and does the same as in ``services.gateway.api.chat_completions``; only how it is awaited differs. Plain is a
chat in text, with an answer in text or speech, to a model whose graph follows from the kind of request. Fields that are
not named here make a request go the general way, those of tomorrow included.
"""

import asyncio
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np

from omnibus import tracing
from omnibus.encoding.audio import SoundFormat
from omnibus.errors import ClientClosed, OmnibusError
from omnibus.metrics import GATEWAY
from omnibus.tensors.item import Item
from services.gateway.apps.chat import AppChats
from services.gateway.dispatch.streams import ItemStream
from services.gateway.http.direct import DirectConnection, DirectResponse, DirectRoute
from services.gateway.http.open_requests import OpenRequests
from services.gateway.http.response import JSON, Headers, run_headers
from services.gateway.media.audio_encoder import UNCOMPRESSED_FORMATS
from services.gateway.media.files import new_secret_id
from services.gateway.media.spoken_answers import SpokenAnswers
from services.gateway.openai import openapi
from services.gateway.openai.chat_request import (
    AssistantMessage,
    ChatRequest,
    DeveloperMessage,
    SystemMessage,
    UserMessage,
)
from services.gateway.openai.chat_stream import DONE
from services.gateway.openai.parse import parse_chat
from services.gateway.request.accumulator import AnswerAccumulator
from services.gateway.request.request import ClientRequest, RequestFactory
from services.gateway.tasks.chat import Chat, PlainChat
from services.gateway.tasks.chat_response import (
    AudioOutputFile,
    choose_text_event,
    encode_answer,
    encode_text_events,
    join_samples,
    open_event_stream,
    store_speech,
)
from services.gateway.tasks.output_streams import open_output_streams

#: What came of an answer: names of its streams, and items.
Batch = list[tuple[str, Item]]

#: Fields that a plain chat may have.
PLAIN_FIELDS = frozenset(
    {"model", "messages", "modalities", "audio", "stream", "stream_options", "max_tokens", "max_completion_tokens",
     "temperature", "top_p", "seed", "stop", "top_k", "repetition_penalty", "ignore_eos", "metadata", "user", "store"}
)  # fmt: skip
_OTHER_FIELDS = tuple(name for name in ChatRequest.__struct_fields__ if name not in PLAIN_FIELDS)
_read_other_fields = attrgetter(*_OTHER_FIELDS)
_NO_OTHER_FIELDS = (None,) * len(_OTHER_FIELDS)
_BESIDES = tuple(name for name in AssistantMessage.__struct_fields__ if name != "content")
_read_besides = attrgetter(*_BESIDES)
_NOTHING_BESIDES = (None,) * len(_BESIDES)
_TEXT_MESSAGES = (UserMessage, SystemMessage, DeveloperMessage)


class DirectChatRoute(DirectRoute):
    """Answers plain chats to models of the plan. ``chats`` are those of apps too, which go the general way."""

    def __init__(
        self,
        runs: RequestFactory,
        chat: Chat,
        open_requests: OpenRequests,
        allows: Callable[[bytes], bool] | None = None,
        chats: AppChats | None = None,
    ) -> None:
        super().__init__(openapi.PATH, open_requests, allows)
        self._runs = runs
        self._chat = chat
        self._chats = chats

    def begin(self, connection: DirectConnection, body: bytes) -> bool:
        prepared = self._prepare(body)
        if prepared is None:
            return False
        try:
            run = self._chat.open_request(prepared.request.model, prepared.request.seed)
        except OmnibusError:
            return False
        DirectChat(self, connection, self._chat, prepared, run).start()
        return True

    def _prepare(self, body: bytes) -> PlainChat | None:
        """The chat in ``body``; None for one that is not plain, or not right: the general way says what is wrong."""
        runs = self._runs
        if (
            runs.admission is not None
            or tracing.tracer is not None
            or self.open_requests.stopping
            or runs.dispatcher.inflight_count >= runs.settings.max_inflight
        ):
            return None
        try:
            request = parse_chat(body)
            return self._chat.prepare_plain(request) if self._is_plain(request) else None
        except OmnibusError:
            return None

    def _is_plain(self, request: ChatRequest) -> bool:
        return (
            _read_other_fields(request) == _NO_OTHER_FIELDS
            and all(map(_is_text, request.messages))
            and not request.wants_images
            and not (request.stream and not self._is_plain_stream(request))
            and not (self._chats is not None and self._chats.is_served_by_app(request.model))
        )

    def _is_plain_stream(self, request: ChatRequest) -> bool:
        """Return whether nothing promises the stream, and nothing of it takes time to encode."""
        plain_format = request.audio is None or request.audio.format in UNCOMPRESSED_FORMATS
        return plain_format and self._runs.settings.continue_streams != "always"


def _is_text(message: Any) -> bool:
    """Return whether ``message`` is text alone, and refers to nothing."""
    kind = type(message)
    if kind is AssistantMessage:
        return type(message.content) is str and _read_besides(message) == _NOTHING_BESIDES
    return kind in _TEXT_MESSAGES and type(message.content) is str


class DirectChat(DirectResponse):
    """One chat under way, from its request to the last byte of its answer."""

    def __init__(
        self, route: DirectRoute, connection: DirectConnection, chat: Chat, plain: PlainChat, run: ClientRequest
    ) -> None:
        super().__init__(route, connection)
        self._chat = chat
        self._plain = plain
        self._request = plain.request
        self._run = run
        self._got = run.answer = AnswerAccumulator(plain.request.model, run.created)
        self._loop = asyncio.get_running_loop()
        self._streams: dict[str, ItemStream] = {}
        self._deadline: asyncio.TimerHandle | None = None
        self._finishing: asyncio.Task[None] | None = None  # of an answer whose speech is kept
        self._scheduled = self._ended = False

    @property
    def id(self) -> str:
        return self._run.id

    def start(self) -> None:
        """Send the request on its way. What fails is the answer."""
        request, chat, run = self._request, self._chat, self._run
        try:
            output = chat.begin_plain(run, self._plain)
            self._streams = open_output_streams(output)
            kind = _StreamedAnswer if request.stream else _WholeAnswer
            self._answer: _WholeAnswer | _StreamedAnswer = kind(
                self, run, request, self._got, chat.spoken, output.audio is not None
            )
        except Exception as error:  # noqa: BLE001 the answer says it
            self._fail(error)
            return
        for stream in self._streams.values():
            stream.notify = self.schedule
        self._deadline = self._loop.call_later(max(0.0, run.seconds_left), self._on_deadline)
        self.schedule()  # a stream may have ended already

    def schedule(self) -> None:
        """Something came: look at all that there is, once in this turn of the event loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._advance)

    def on_writable(self) -> None:
        self.schedule()

    def _advance(self) -> None:
        self._scheduled = False
        if self._ended or self._finishing is not None or self.is_write_paused:
            return
        try:
            batch = [(name, item) for name, stream in self._streams.items() for item in stream.take_ready()]
            self._answer.add_batch(batch)
            ended = [stream for stream in self._streams.values() if stream.ended]
            for stream in ended:
                stream.take_ready()  # raises what it ended with, now that all before that was taken
            if len(ended) == len(self._streams):
                self._finish()
        except Exception as error:  # noqa: BLE001 the answer says it
            self._fail(error)

    # The end

    def _finish(self) -> None:
        """Send the end of the answer: at once, or when its speech is kept."""
        if self._request.wants_audio:
            self._finishing = self._loop.create_task(self._finish_spoken())
        else:
            self._answer.finish(None)

    async def _finish_spoken(self) -> None:
        try:
            self._answer.finish(await self._answer.store_speech())
        except Exception as error:  # noqa: BLE001 the answer says it
            self._fail(error)

    def end_run(self) -> None:
        """All of the answer is known, and leaves now."""
        self._close_work()
        self._run.end("done")
        GATEWAY.request_counter(self._request.model, "ok").inc()

    def _close_work(self) -> None:
        self._ended = True
        if self._deadline is not None:
            self._deadline.cancel()
        for stream in self._streams.values():
            stream.notify = None
            stream.stop()

    def _on_deadline(self) -> None:
        self._fail(self._run.deadline_error(), "expired")

    def on_left(self) -> None:
        if not self._ended:
            self._abort(ClientClosed("the client left"), "cancelled")
            GATEWAY.request_counter(self._request.model, "cancelled").inc()

    def _abort(self, error: OmnibusError | None, status: str) -> None:
        self._close_work()
        if self._finishing is not None:
            self._finishing.cancel()
        if error is not None:
            self._run.fail(error)
        self._run.end(status)

    def _fail(self, error: Exception, status: str = "failed") -> None:
        """Answer with ``error``."""
        if self._ended:
            return
        typed = error if isinstance(error, OmnibusError) else self.internal_error(error)
        cancelled = self._run.status == "cancelled"
        self._abort(typed if typed is error else None, status)
        GATEWAY.request_counter(self._request.model, "cancelled" if cancelled else typed.code).inc()
        self.send_error(typed)

    def run_headers(self) -> Headers:
        """Headers that say where to look: invocation, path and plan epoch."""
        return run_headers(self._run)


class _WholeAnswer:
    """An answer that leaves as a whole."""

    def __init__(
        self,
        response: DirectChat,
        run: ClientRequest,
        request: ChatRequest,
        got: AnswerAccumulator,
        keeper: SpokenAnswers | None,
        _: bool,
    ) -> None:
        self._response = response
        self._run = run
        self._request = request
        self._got = got
        self._keeper = keeper
        self._samples: list[np.ndarray] = []

    def add_batch(self, batch: Batch) -> None:
        """Take what came."""
        for name, item in batch:
            self._got.add_item(name, item.data, item.array)
            if name == "audio" and item.array is not None:
                self._samples.append(item.array)

    async def store_speech(self) -> Any:
        """The spoken part of the answer, kept."""
        return await store_speech(self._request, join_samples(self._samples, self._got), self._got, self._keeper)

    def finish(self, spoken: Any) -> None:
        """Send it."""
        body = encode_answer(self._run, self._request, self._got, spoken)
        self._response.end_run()
        self._response.send_body(JSON, body, self._response.run_headers())


class _StreamedAnswer:
    """An answer that leaves piece by piece: see ``stream_events``."""

    def __init__(
        self,
        response: DirectChat,
        run: ClientRequest,
        request: ChatRequest,
        got: AnswerAccumulator,
        keeper: SpokenAnswers | None,
        speaks: bool,
    ) -> None:
        self._response = response
        self._got = got
        self._stream = stream = open_event_stream(run, request)
        self._say = choose_text_event(stream, request, speaks)
        self._head = stream.role("" if request.wants_text else None)
        self._audio: AudioOutputFile | None = None
        if speaks:
            format: SoundFormat = request.audio.format if request.audio is not None else "pcm16"
            self._audio = AudioOutputFile(format, keeper, new_secret_id("audio_"))
            self._head += stream.audio_start(self._audio.id)
        self._is_accepted = False
        run.notify_when_accepted(self._on_accepted)

    def _on_accepted(self) -> None:
        self._is_accepted = True
        self._response.schedule()

    def add_batch(self, batch: Batch) -> None:
        """Send what came; the first events also once all executors have taken the request."""
        if not batch and (self._response.begun or not self._is_accepted):
            return
        got = self._got
        frames = [] if self._response.begun else [self._head]
        frames += encode_text_events(self._stream, self._say, got, batch)
        samples = [item.array for _, item in batch if item.array is not None]
        if samples and self._audio is not None:
            frames.append(self._stream.audio(self._audio.push_now(samples, got)))
        self._response.send_events(b"".join(frames), self._response.run_headers)

    async def store_speech(self) -> bytes:
        """The end of the speech, which is kept."""
        if self._audio is None:
            return b""
        rest = self._stream.audio(await self._audio.close(self._got))
        return rest + self._stream.audio_end(await self._audio.store_answer(self._got.text))

    def finish(self, speech: bytes | None) -> None:
        """Send the last events."""
        stream, got = self._stream, self._got
        self._response.end_run()
        head = b"" if self._response.begun else self._head
        tail = (head, speech or b"", stream.finish(got.finish), stream.usage(got.usage()), DONE)  # type: ignore[arg-type]
        self._response.send_events(b"".join(tail), self._response.run_headers, last=True)
