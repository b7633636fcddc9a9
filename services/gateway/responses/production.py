"""A response that is being made at this gateway, by a task of its own; whoever wants its events follows it.

Its events are in the log before a client has them. One whose clients have all left stops, unless it is made in the
background: whoever asks for the rest of it later, here or at another gateway, has it made on from there.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from typing import NamedTuple

import msgspec

from omnibus.errors import (
    BusUnavailable,
    Conflict,
    Fatal,
    GatewayStopping,
    OmnibusError,
    Rejected,
    Retryable,
    StoreUnavailable,
)
from services.gateway.apps.chat import AppChats
from services.gateway.openai.responses.events import AnswerEvents, ending_event
from services.gateway.openai.responses.response import ResponseObject, failed_response
from services.gateway.openai.responses.sequence import EventSequence, NumberedEvent, item_of
from services.gateway.openai.responses.to_chat import ChatOfResponse
from services.gateway.request.accumulator import AnswerAccumulator
from services.gateway.request.lifecycle import run_to_end
from services.gateway.request.request import ClientRequest
from services.gateway.request.token_ids import TokenIds
from services.gateway.responses.answer import AnswerReader, AnswerStep
from services.gateway.responses.drawing import ImageDrawer
from services.gateway.responses.log import LogContent, ResponseLog
from services.gateway.tasks.chat import Chat
from services.gateway.tenancy.deferred import revoked_error

log = logging.getLogger(__name__)

#: Reason for the end of a response whose API key was revoked.
REVOKED = "revoked"
#: Seconds until a response in the background is tried again that could not be made just now.
_RETRY_PAUSE_SECONDS = 2.0
#: Seconds that the log may take for the last event of a response that ends before its time, which its clients await.
_LAST_EVENT_SECONDS = 1.0
#: Seconds between the appends of a response in the background that has no followers: a client that polls sees no
#: difference, and the gateway and the log do not work for each of its tokens.
_UNFOLLOWED_APPEND_SECONDS = 0.1
#: Errors that are not the end of a response: another gateway can go on with it.
_PASSING = (GatewayStopping, Conflict, BusUnavailable, StoreUnavailable)


class ProductionSpec(NamedTuple):
    """All that is needed to make a response. ``opened`` opens the request behind it, ``begun`` is awaited before its
    first event, ``ended`` after its last one; neither is needed for one that is not stored. ``drawer`` draws images.
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
    """Makes one response. ``error`` is why it has ended without an end."""

    def __init__(self, spec: ProductionSpec, chat: Chat, chats: Chat | AppChats) -> None:
        self.spec = spec
        self.response = spec.response
        self.run = spec.opened()
        self.error: OmnibusError | None = None
        self.stopped_for = ""  # why somebody ended it
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
        """Begin to make it."""
        self._task = asyncio.get_running_loop().create_task(self._make(), name=self.response.id)

    def on_over(self, over: Callable[["Production"], None]) -> None:
        """Call ``over`` when it is not made here any more."""
        if self._task is not None:
            self._task.add_done_callback(lambda _: over(self))

    async def stop(self, reason: str) -> None:
        """End it now, for ``reason``: ``cancelled`` and ``REVOKED`` are ends of the response, others are not."""
        self.stopped_for = self.stopped_for or reason
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    # Followers

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Make it as long as the block lasts, and for others that follow it."""
        self._followers += 1
        try:
            yield
        finally:
            self._followers -= 1
            if not self._followers and not self.is_background and self._task is not None and not self._over:
                self.stopped_for = self.stopped_for or "left"
                self._task.cancel()

    async def follow(self) -> AsyncIterator[list[NumberedEvent]]:
        """Yield its events as they come, from the first one on. Raises what it has failed with."""
        sent = 0
        while True:
            events = self._events[sent:]
            sent += len(events)
            if events:
                yield events
            if self._over:
                if self.error is not None:
                    raise self.error
                return
            if sent == len(self._events):
                news = asyncio.get_running_loop().create_future()
                self._news.append(news)
                await news

    async def wait_finished(self) -> ResponseObject:
        """The whole response. Raises what it has failed with."""
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
            self.error = GatewayStopping("this gateway is stopping: another one goes on with the response")
        except OmnibusError as error:
            self.error = error
        except Exception:
            log.exception("%s failed", self.response.id)
            self.error = Fatal("internal error: the gateway's log has more under this id")
        finally:
            self._over = True
            self._wake_followers()

    async def _make_until_over(self) -> None:
        while True:
            events = AnswerEvents(self.spec.response, encrypts=self.spec.encrypts)
            sequence = EventSequence(self._events)
            try:
                await self._make_once(events, sequence)
                return
            except asyncio.CancelledError:
                if self.stopped_for == REVOKED:
                    await self._end_early(failed_response(events.response, revoked_error()), revoked_error())
                    return
                if self.stopped_for == "cancelled":
                    stopped = GatewayStopping("the response was cancelled, which its log does not say: NATS is silent")
                    await self._end_early(msgspec.structs.replace(events.response, status="cancelled"), stopped)
                    return
                raise
            except OmnibusError as error:
                if isinstance(error, _PASSING) or not self._has_begun:
                    raise
                if not (self.is_background and isinstance(error, Retryable) and self.run.seconds_left > 0):
                    await self._end_early(failed_response(events.response, error), error)
                    return
                log.info("%s is tried again: %s", self.response.id, error)
                await asyncio.sleep(getattr(error, "retry_after", 0.0) or _RETRY_PAUSE_SECONDS)
            self.run = self.spec.opened()

    @property
    def _has_begun(self) -> bool:
        """True if its failure is an event: its client has some, or does not wait."""
        return bool(self._events)

    async def _make_once(self, events: AnswerEvents, sequence: EventSequence) -> None:
        if self.is_background:
            await self._publish(AnswerStep(events.wait(), []), sequence)
        run = self.run
        self._made_ids, self._unsaved_ids = TokenIds(self._token_ids), []
        if self.spec.deadline:
            run.resume_until(self.spec.deadline)
        if run.model:  # an app's graphs are its own
            run.known = tuple(self._token_ids)
        try:
            async with run_to_end(run), aclosing(self._read_steps(run, events)) as steps:
                async for step in steps:
                    await self._publish(step, sequence)
                    if self.is_background and not self._followers:
                        await asyncio.sleep(_UNFOLLOWED_APPEND_SECONDS)
        except Rejected as error:
            error.param = self.spec.asked.client_param(error.param)
            raise
        await self._settle(events.response)

    async def _read_steps(self, run: ClientRequest, events: AnswerEvents) -> AsyncGenerator[AnswerStep, None]:
        """Send the request on its way, and yield the steps of its answer."""
        request, drawer = self.spec.asked.request, self.spec.drawer
        if drawer is not None and drawer.alone:
            async with aclosing(drawer.draw_alone(run, request, events)) as images:
                async for drawn in images:
                    yield AnswerStep(drawn, [])
            return
        if drawer is not None:
            drawer.forget_calls()
        run.answer = AnswerAccumulator(request.model, run.created)
        output = await self._chats.begin_answer(run, await self._chat.prepare_request(run, request))
        reader = AnswerReader(run, request, events, self._chat.spoken, drawer)
        async with aclosing(reader.read(output)) as steps:
            async for step in steps:
                yield step

    async def _publish(self, step: AnswerStep, sequence: EventSequence) -> None:
        """Give out what is new of ``step``, once the log has it."""
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
        """End it before its time, as ``response`` says, with the items that are known to be whole.

        Raises ``error`` where the log does not take that in time: whoever looks at it later ends it.
        """
        whole = [item for event in self._events for item in item_of(event)]
        ended = msgspec.structs.replace(response, output=whole)
        last = EventSequence.after(self._events).number([ending_event(ended)])
        if self.spec.log is not None:
            try:
                async with asyncio.timeout(None if self.is_background else _LAST_EVENT_SECONDS):
                    await self.spec.log.append(last)
            except TimeoutError:
                raise error from None
        self._events += last
        await self._settle(ended)

    async def _settle(self, response: ResponseObject) -> None:
        self.response = response
        if self.spec.ended is not None:
            await self.spec.ended(response)


class FollowedProduction:
    """The production that a reader of a log keeps going, once there is one."""

    def __init__(self) -> None:
        self.looked = False
        self._followed: AbstractContextManager[None] | None = None
        self._production: Production | None = None

    def follow(self, production: Production) -> None:
        """Keep ``production`` going, in the place of the one before."""
        if self._production is not production:
            self.release()
            self._production, self._followed = production, production.followed()
            self._followed.__enter__()

    def release(self) -> None:
        """Keep it going no longer."""
        followed, self._followed = self._followed, None
        if followed is not None:
            followed.__exit__(None, None, None)
