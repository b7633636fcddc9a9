"""Generation of a response by a task, while clients follow its events.

The log has an event before any client does. A response without clients stops, unless it is a background response. When
a client later requests the rest of it, at any gateway, that gateway continues it.

Conversion of a chat's answer to the events of a response.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager
from typing import Any, NamedTuple

import msgspec

from omnibus.encoding.audio import SoundFormat
from omnibus.errors import (
    BusUnavailable,
    Conflict,
    GatewayStopping,
    OmnibusError,
    Rejected,
    Retryable,
    StoreUnavailable,
)
from omnibus.structured.calls import CallPart, CallReader
from omnibus.task import ChatOutput
from omnibus_gateway.core import ClientRequest, TokenIds
from omnibus_gateway.media.files import new_secret_id
from omnibus_gateway.media.spoken_answers import SpokenAnswers
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.chat_response import call_id
from omnibus_gateway.openai.errors import client_error
from omnibus_gateway.openai.responses.events import AnswerEvents, Event, ending_event
from omnibus_gateway.openai.responses.items import OutputAudio
from omnibus_gateway.openai.responses.response import ResponseObject, failed_response
from omnibus_gateway.openai.responses.sequence import EventSequence, NumberedEvent, item_of
from omnibus_gateway.openai.responses.to_chat import ChatOfResponse
from omnibus_gateway.responses.drawing import ImageDrawer
from omnibus_gateway.responses.log import LogContent, ResponseLog
from omnibus_gateway.tasks.chat import Chat, Chats
from omnibus_gateway.tasks.chat_response import ACCEPTED_STREAM, AcceptanceStream, AudioOutputFile, open_output_streams
from omnibus_gateway.tenancy.tenant import revoked_error


class AnswerStep(NamedTuple):
    """Events that belong together, and the ids of their tokens."""

    events: list[Event]
    token_ids: list[int]


class AnswerReader:
    """Converts the answer of ``run`` to ``request`` to ``events``; ``drawer`` generates the images of its calls."""

    def __init__(
        self,
        run: ClientRequest,
        request: ChatRequest,
        events: AnswerEvents,
        spoken_answers: SpokenAnswers | None,
        drawer: ImageDrawer | None = None,
    ) -> None:
        self._run = run
        self._drawer = drawer
        self._request = request
        self._events = events
        self._got = run.answer or run.open_answer()
        format: SoundFormat = request.audio.format if request.audio is not None else "pcm16"
        self._format = format
        self._calls = CallReader()
        self._sound = AudioOutputFile(format, spoken_answers, new_secret_id("audio_"))

    async def read(self, output: ChatOutput) -> AsyncGenerator[AnswerStep, None]:
        """Yield the steps of the answer.

        The first step comes once all executors have accepted the request, or with the first output if that is earlier.
        The last step contains the end. Raises the errors of the request.
        """
        parts = open_output_streams(output)
        acceptance = AcceptanceStream()
        if self._run.notify_when_accepted(acceptance.mark_accepted):
            parts[ACCEPTED_STREAM] = acceptance
        has_begun = False
        async for batch in self._run.read_outputs(parts):
            events = [] if has_begun else self._events.begin()
            if not has_begun:
                has_begun = True
                acceptance.end()
                batch = [each for each in batch if each[0] != ACCEPTED_STREAM]
            yield await self._read_batch(batch, events)
        if self._drawer is not None:
            async with aclosing(self._drawer.draw_called(self._run, self._events)) as steps:
                async for image_step in steps:
                    yield AnswerStep(image_step, [])
        events = [] if has_begun else self._events.begin()
        yield AnswerStep([*events, *await self._finish(output)], [])

    async def _read_batch(self, batch: Sequence[tuple[str, Any]], events: list[Event]) -> AnswerStep:
        ids: list[int] = []
        for name, item in batch:
            if name == "text":
                events += self._read_text(item.data)
                ids += item.data.get("ids", ())
        samples = [item.array for _, item in batch if item.array is not None]
        if samples and (data := await self._sound.push_samples(samples, self._got)):
            events += self._events.add_audio(data)
        return AnswerStep(events, ids)

    def _read_text(self, data: dict[str, Any]) -> list[Event]:
        reasoning, text, calls = data.get("reasoning"), data.get("text"), data.get("calls")
        events = self._events.add_reasoning(reasoning) if reasoning else []
        if text:
            events += self._events.add_text(text) if self._request.wants_text else self._events.add_transcript(text)
        for part in self._calls.read(calls) if calls else ():
            events += self._read_call(part)
        return events

    def _read_call(self, part: CallPart) -> list[Event]:
        if self._drawer is not None and self._drawer.take_call(part):
            return []
        begin_events = (
            self._events.begin_call(part.name, call_id(self._events.response.id, part.number)) if part.name else []
        )
        return [*begin_events, *(self._events.add_arguments(part.arguments) if part.arguments else ())]

    async def _finish(self, output: ChatOutput) -> list[Event]:
        events: list[Event] = []
        output_audio = None
        if output.audio is not None:
            events += self._events.add_audio(await self._sound.close(self._got))
            await self._sound.store_answer(self._got.text)
            output_audio = OutputAudio(self._got.text, self._sound.id, "", self._format)
        return [*events, *self._events.finish(self._got.finish, self._got.usage(), time.time(), output_audio)]


log = logging.getLogger(__name__)

#: Reason for the end of a response if its API key was revoked.
REVOKED = "revoked"
#: Seconds before the retry of a background response after a transient error.
_RETRY_PAUSE_SECONDS = 2.0
#: Timeout of the append of a last event if a response ends early and clients wait for it, in seconds.
_LAST_EVENT_SECONDS = 1.0
#: Seconds between the appends of a background response without followers. A polling client sees no difference, and the
#: gateway and the log save work per token.
_UNFOLLOWED_APPEND_SECONDS = 0.1
#: Errors that do not end a response: another gateway can continue it.
_PASSING = (GatewayStopping, Conflict, BusUnavailable, StoreUnavailable)


class ProductionSpec(NamedTuple):
    """Inputs of a production.

    ``opened`` opens its request, ``begun`` is awaited before its first event, ``ended`` after its last one. The latter
    two are only for stored responses. ``drawer`` generates images.
    """

    response: ResponseObject
    asked: ChatOfResponse
    opened: Callable[[], ClientRequest]
    deadline: float = 0.0
    encrypts: bool = False
    log: ResponseLog | None = None
    known: LogContent | None = None
    begun: Callable[[], Awaitable[None]] | None = None
    ended: Callable[[ResponseObject], Awaitable[None]] | None = None
    drawer: ImageDrawer | None = None


class Production:
    """Generation of one response. ``error`` is the reason if it stopped without an end."""

    def __init__(self, spec: ProductionSpec, chat: Chat, chats: Chats) -> None:
        self.spec = spec
        self.response = spec.response
        self.run = spec.opened()
        self.error: OmnibusError | None = None
        self.stopped_for = ""  # reason of a stop
        self._chat = chat
        self._chats = chats
        self._known = spec.known or LogContent()
        self._events = list(self._known.events)
        self._token_ids = list(self._known.token_ids)
        self._made_ids = TokenIds()  # of this attempt
        self._unsaved_ids: list[int] = []
        self._followers = 0
        self._over = False
        self._news: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def is_background(self) -> bool:
        return self.spec.response.background

    def start(self) -> None:
        """Start the generation."""
        self._task = asyncio.get_running_loop().create_task(self._make(), name=self.response.id)

    def on_over(self, over: Callable[["Production"], None]) -> None:
        """Call ``over`` when this gateway no longer generates the response."""
        if self._task is not None:
            self._task.add_done_callback(lambda _: over(self))

    async def stop(self, reason: str) -> None:
        """Stop now, for ``reason``. ``cancelled`` and ``REVOKED`` end the response; other reasons do not."""
        self.stopped_for = self.stopped_for or reason
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    # Followers

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Keep the production running during the block, as each follower does."""
        self._followers += 1
        try:
            yield
        finally:
            self._followers -= 1
            if not self._followers and not self.is_background and self._task is not None and not self._over:
                self.stopped_for = self.stopped_for or "left"
                self._task.cancel()

    async def follow(self) -> AsyncIterator[list[NumberedEvent]]:
        """Yield its events as they arrive, from the first one. Raises the error of the production."""
        sent_count = 0
        while True:
            events = self._events[sent_count:]
            sent_count += len(events)
            if events:
                yield events
            if self._over:
                if self.error is not None:
                    raise self.error
                return
            if sent_count == len(self._events):
                news = asyncio.get_running_loop().create_future()
                self._news.append(news)
                await news

    async def wait_finished(self) -> ResponseObject:
        """Wait for the complete response. Raises the error of the production."""
        async for _ in self.follow():
            pass
        return self.response

    def _wake_followers(self) -> None:
        waiting, self._news = self._news, []
        for news in waiting:
            if not news.done():
                news.set_result(None)

    # The work

    async def _make(self) -> None:
        try:
            await self._make_until_over()
        except asyncio.CancelledError:
            self.error = GatewayStopping("this gateway is stopping: another one continues the response")
        except Exception as error:  # noqa: BLE001 its followers get it
            self.error = client_error(error, self.response.id)
        finally:
            self._over = True
            self._wake_followers()

    async def _make_until_over(self) -> None:
        while True:
            events = AnswerEvents(self.spec.response, encrypts=self.spec.encrypts, calls=self.spec.asked.calls)
            sequence = EventSequence(self._events)
            try:
                await self._make_once(events, sequence)
                return
            except asyncio.CancelledError:
                if self.stopped_for == REVOKED:
                    await self._end_early(failed_response(events.response, revoked_error()), revoked_error())
                    return
                if self.stopped_for == "cancelled":
                    stop_error = GatewayStopping("the response was cancelled, but NATS did not store its end in time")
                    await self._end_early(msgspec.structs.replace(events.response, status="cancelled"), stop_error)
                    return
                raise
            except OmnibusError as error:
                if isinstance(error, _PASSING) or not self._has_begun:
                    raise
                if not (self.is_background and isinstance(error, Retryable) and self.run.seconds_left > 0):
                    await self._end_early(failed_response(events.response, error), error)
                    return
                log.info("retrying %s: %s", self.response.id, error)
                await asyncio.sleep(getattr(error, "retry_after", 0.0) or _RETRY_PAUSE_SECONDS)
            self.run = self.spec.opened()

    @property
    def _has_begun(self) -> bool:
        """True if a failure becomes an event: a client has some events or does not wait."""
        return bool(self._events)

    async def _make_once(self, events: AnswerEvents, sequence: EventSequence) -> None:
        if self.is_background:
            await self._publish(AnswerStep(events.wait(), []), sequence)
        run = self.run
        self._made_ids, self._unsaved_ids = TokenIds(self._token_ids), []
        if self.spec.deadline:
            run.resume_until(self.spec.deadline)
        if run.model:  # apps choose their own graphs
            run.known = tuple(self._token_ids)
        try:
            async with run.until_end(), aclosing(self._read_steps(run, events)) as steps:
                async for step in steps:
                    await self._publish(step, sequence)
                    if self.is_background and not self._followers:
                        await asyncio.sleep(_UNFOLLOWED_APPEND_SECONDS)
        except Rejected as error:
            error.param = self.spec.asked.client_param(error.param)
            raise
        await self._settle(events.response)

    async def _read_steps(self, run: ClientRequest, events: AnswerEvents) -> AsyncGenerator[AnswerStep, None]:
        """Start the request, and yield the steps of its answer."""
        request, drawer = self.spec.asked.request, self.spec.drawer
        if drawer is not None and drawer.alone:
            async with aclosing(drawer.draw_alone(run, request, events)) as images:
                async for image_events in images:
                    yield AnswerStep(image_events, [])
            return
        if drawer is not None:
            drawer.forget_calls()
        run.open_answer()
        output = await self._chats.begin_answer(run, await self._chat.prepare_request(run, request))
        reader = AnswerReader(run, request, events, self._chat.spoken, drawer)
        async with aclosing(reader.read(output)) as steps:
            async for step in steps:
                yield step

    async def _publish(self, step: AnswerStep, sequence: EventSequence) -> None:
        """Publish the new events of ``step``, once the log has them."""
        self._unsaved_ids += self._made_ids.add(step.token_ids)
        fresh = sequence.number(step.events)
        if not fresh:
            return
        if self.spec.begun is not None and not self._events:
            await self.spec.begun()
        if self.spec.log is not None:
            await self.spec.log.append(fresh, self._unsaved_ids)
            self._token_ids += self._unsaved_ids
            self._unsaved_ids = []
        self._events += fresh
        self._wake_followers()

    async def _end_early(self, response: ResponseObject, error: OmnibusError) -> None:
        """End the response early as ``response``, with its complete items.

        Raises ``error`` if the log does not store the last event in time. A later retrieval then ends the response.
        """
        whole = [item for event in self._events for item in item_of(event)]
        final_response = msgspec.structs.replace(response, output=whole)
        last = EventSequence.after(self._events).number([ending_event(final_response)])
        if self.spec.log is not None:
            try:
                async with asyncio.timeout(None if self.is_background else _LAST_EVENT_SECONDS):
                    await self.spec.log.append(last)
            except TimeoutError:
                raise error from None
        self._events += last
        await self._settle(final_response)

    async def _settle(self, response: ResponseObject) -> None:
        self.response = response
        if self.spec.ended is not None:
            await self.spec.ended(response)


class FollowedProduction:
    """The production that a reader of a log keeps running, if any."""

    def __init__(self) -> None:
        self.looked = False
        self._followed: AbstractContextManager[None] | None = None
        self._production: Production | None = None

    def follow(self, production: Production) -> None:
        """Keep ``production`` running instead of the previous one."""
        if self._production is not production:
            self.release()
            self._production, self._followed = production, production.followed()
            self._followed.__enter__()

    def release(self) -> None:
        """Stop keeping the production running."""
        hold, self._followed = self._followed, None
        if hold is not None:
            hold.__exit__(None, None, None)
