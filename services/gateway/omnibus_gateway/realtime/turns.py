"""Responses of one session in progress; at most one of them writes to the conversation.

An early answer starts in a pause that is too short to end the turn. The model receives the same audio whether or not
its answer started early, so the answer is the same too. Before the turn ends, the output of an early answer is not
read, sent, logged or counted against the request limit of the key. If the user continues to speak, the request of the
early answer is cancelled.

The audio of a turn is processed while the user speaks, so that only the last windows remain when the turn ends.
Encoders that attend within windows cache the windows that they have encoded (``omnibus_encoder.embedding_cache``).
Language models that cache prompts of conversations cache their rows (``omnibus_llm.engine.kept_prompts``).
Each time another window is complete, the gateway sends the conversation with the audio so far to both, which compute
only the new part. If no language model caches it, the audio goes to the encoder alone. The gateway does not read the
results, and the answer does not depend on them: it computes the parts that are not cached.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from secrets import token_hex
from typing import NamedTuple

import msgspec

from omnibus.errors import OmnibusError, Overloaded, TooSlow
from omnibus.metrics import GATEWAY
from omnibus.recording.sessions import BegunTurn
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.realtime.session import SessionConfig, encode_event
from omnibus_gateway.realtime.config import ModelAbilities, to_wav
from omnibus_gateway.realtime.conversation import Conversation, ConversationItem, Event, ItemPart, ResponseEvents
from omnibus_gateway.realtime.event_sender import (
    ACTIVE_RESPONSE,
    NO_ACTIVE_RESPONSE,
    EventRefused,
    EventSender,
    describe_error,
)
from omnibus_gateway.realtime.input_turns import InputTurns
from omnibus_gateway.realtime.restored import RestoredTurn, to_logged
from omnibus_gateway.realtime.speech_detectors import EnergyDetector, FindDetector
from omnibus_gateway.realtime.turn import CLIENT_CANCELLED, TURN_DETECTED, Turn, TurnSpec
from omnibus_gateway.tasks.ahead import AheadEncoder, AheadPrefill
from omnibus_gateway.tasks.chat import Chat, Chats
from omnibus_gateway.tasks.recognition import RecordingReader

#: Early answers in one turn; after more pauses, the answer starts when the turn has ended.
MAX_PAUSES = 8
#: Longest turn, in seconds, for early answers: all of its audio is encoded again at each pause.
MAX_SECONDS = 60

#: Creates a turn that answers items, not started yet, and the builder of its events.
_CreateTurn = Callable[[SessionConfig, list[ConversationItem]], tuple[Turn, ResponseEvents]]


class EarlyTurn(NamedTuple):
    """Response that started before the last of its ``items`` was complete."""

    turn: Turn
    events: ResponseEvents
    config: SessionConfig
    items: list[ConversationItem]

    def answers(self, config: SessionConfig, items: list[ConversationItem]) -> bool:
        """Return True if it is the answer to ``items``."""
        *before, last = self.items
        return (
            self.config == config
            and len(items) == len(self.items)
            and all(own_item is new_item for own_item, new_item in zip(before, items, strict=False))
            and last.id == items[-1].id
            and [each.model_audio for each in last.parts] == [each.model_audio for each in items[-1].parts]
        )


class EarlyAnswers:
    """Early answer of one session, at most one at a time."""

    def __init__(self, create_turn: _CreateTurn) -> None:
        self._create_turn = create_turn
        self._current: EarlyTurn | None = None
        self._item_id, self._at_ms, self._count = "", 0, 0  # of the pause in which the last one started

    def is_due(self, item_id: str, begin_ms: int, at_ms: int) -> bool:
        """Return True once per pause: the item that began at ``begin_ms`` may end at ``at_ms``."""
        if (item_id, at_ms) == (self._item_id, self._at_ms) or at_ms - begin_ms > MAX_SECONDS * 1000:
            return False
        self._count = self._count + 1 if item_id == self._item_id else 1
        self._item_id, self._at_ms = item_id, at_ms
        return self._count <= MAX_PAUSES

    def begin(self, config: SessionConfig, items: list[ConversationItem]) -> None:
        """Start an answer to ``items``; its output is not sent until ``take``."""
        try:
            turn, events = self._create_turn(config, items)
        except OmnibusError:  # the client gets the error when the turn has ended
            return
        self._current = EarlyTurn(turn, events, config, items)
        turn.start()

    def take(
        self, config: SessionConfig, items: list[ConversationItem], end: Callable[[Turn, list[Event]], None]
    ) -> EarlyTurn | None:
        """Return the early answer to ``items`` if it is still running; it calls ``end`` when it ends."""
        early = self._current
        if early is None or not early.answers(config, items) or not early.turn.confirm(end):
            return None
        self._current = None
        GATEWAY.realtime_early.labels(config.model, "used").inc()
        return early

    async def drop(self) -> None:
        """Cancel the early answer: the user continues to speak, or the items have changed."""
        early, self._current = self._current, None
        if early is not None:
            await early.turn.cancel(TURN_DETECTED)


#: Milliseconds after a window that are sent with it. The encoder caches all windows except the last one, which may be
#: incomplete, and the features of the last milliseconds of audio still change with the audio after them.
_MARGIN_MS = 100

#: Builds the chat request for items of the conversation.
BuildRequest = Callable[[SessionConfig, list[ConversationItem]], ChatRequest]


class SpeechEncoding:
    """Processes the speech of one session, one request at a time."""

    def __init__(self, chat: Chat, conversation: Conversation, build_request: BuildRequest) -> None:
        self._encoder, self._prefill = AheadEncoder(chat), AheadPrefill(chat)
        self._conversation = conversation
        self._build_request = build_request
        self._task: asyncio.Task[None] | None = None
        self._begin_ms, self._windows = -1, 0  # of the last request

    def follow(self, config: SessionConfig, input: InputTurns) -> None:
        """Send the buffered audio of ``input`` if another window is complete."""
        window_ms = 1000 * self._encoder.window_seconds(config.model)
        if not window_ms or (self._task is not None and not self._task.done()):
            return
        if input.begin_ms != self._begin_ms:
            self._begin_ms, self._windows = input.begin_ms, 0
        windows = int((input.held_ms - _MARGIN_MS) // window_ms)
        if windows <= self._windows or input.held_ms > MAX_SECONDS * 1000:
            return
        self._windows = windows
        audio = input.read_until(input.begin_ms + int(windows * window_ms) + _MARGIN_MS)
        part = ItemPart("input_audio", audio=audio, format=config.input_format)
        item = ConversationItem(input.speech_id, "message", "user", parts=[part])
        reading = self._read_speech(config, item, audio, window_ms / 1000)
        self._task = asyncio.get_running_loop().create_task(reading)

    async def drop(self) -> None:
        """Cancel the request in progress: the turn is complete, or was not one."""
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait({task})

    async def _read_speech(
        self, config: SessionConfig, item: ConversationItem, audio: bytes, new_seconds: float
    ) -> None:
        try:
            if await self._prefill_prompt(config, item):
                outcome = "prefilled"
            else:
                wav = to_wav(audio, config.input_format)
                await self._encoder.encode(config.model, wav, new_seconds, self._conversation.id)
                outcome = "encoded"
        except OmnibusError:  # the answer computes it, or fails in the same way
            return
        GATEWAY.realtime_early.labels(config.model, outcome).inc()

    async def _prefill_prompt(self, config: SessionConfig, item: ConversationItem) -> bool:
        """Request the prompt up to ``item``; returns True if it was computed."""
        items = [*self._conversation, item]
        if any(part.image_url and not part.image_url.startswith("data:") for each in items for part in each.parts):
            return False  # it would be fetched for each window
        try:
            await self._prefill.prefill(self._build_request(config, items))
        except OmnibusError:
            return False
        return True


#: Maximum number of parallel responses of one session: one in the conversation, the others out of band.
MAX_TURNS = 8


class SessionContext(NamedTuple):
    """Environment of a session.

    ``count_bytes`` is called with the change of its bytes in memory, and may raise. ``limit`` counts a response against
    the limits of the client's key, and ``rate_limits`` returns those limits. ``find_detector`` returns the speech
    detector of a model. ``begins_early`` allows answers to start in the silence that may end a turn.
    """

    chat: Chat
    chats: Chats
    recordings: RecordingReader
    abilities: ModelAbilities
    expires_at: int
    count_bytes: Callable[[int], None]
    limit: Callable[[], AbstractContextManager[None]]
    rate_limits: Callable[[], list[Event]]
    find_detector: FindDetector = lambda _: EnergyDetector
    begins_early: bool = False


class SessionTurns:
    """Creates responses; ``post`` takes their events, and ``on_over`` is called after each."""

    def __init__(
        self,
        context: SessionContext,
        conversation: Conversation,
        post: Callable[..., None],
        outbox: EventSender,
        on_over: Callable[[], None],
    ) -> None:
        self.active: Turn | None = None  # the one that writes to the conversation
        self.has_spoken = False
        self._context = context
        self._conversation = conversation
        self._post = post
        self._outbox = outbox
        self._on_over = on_over
        self._turns: dict[str, Turn] = {}
        self.early = EarlyAnswers(self._create_early)
        self._ahead = SpeechEncoding(context.chat, conversation, self._build_request)

    @property
    def count(self) -> int:
        """Number of responses in progress."""
        return len(self._turns)

    def check_room(self, beside: bool) -> None:
        """Raise ``EventRefused`` or ``Overloaded`` if no other response may begin."""
        if not beside and self.active is not None:
            raise EventRefused(
                f"The conversation has an active response, {self.active.id}: wait until it is done, or cancel it.",
                ACTIVE_RESPONSE,
            )
        if len(self._turns) >= MAX_TURNS:
            raise Overloaded(f"{MAX_TURNS} responses of this session are in progress: wait for one of them")

    def find_turn(self, id: str | None) -> Turn:
        """Return response ``id``. Without an id: the response of the conversation, or any. Raises ``EventRefused``."""
        turn = self.active if id is None else self._turns.get(id)
        if turn is None and id is None:
            turn = next(iter(self._turns.values()), None)
        if turn is None:
            raise EventRefused("No response is in progress that could be cancelled.", NO_ACTIVE_RESPONSE)
        return turn

    async def wait_over(self) -> None:
        """Wait until no response is in progress."""
        while self._turns:
            await next(iter(self._turns.values())).wait_over()

    async def cancel_all(self) -> None:
        """Cancel all responses."""
        await self.drop_begun()
        for turn in list(self._turns.values()):
            await turn.cancel(CLIENT_CANCELLED)

    def begin_turn(
        self,
        config: SessionConfig,
        items: list[ConversationItem],
        beside: bool = False,
        metadata: dict[str, str] | None = None,
    ) -> None:
        """Start to answer ``items``, or confirm their early answer.

        Raises ``OmnibusError`` if they cannot be answered.
        """
        early = None if beside or metadata else self.early.take(config, items, self._end_turn)
        if early is not None:
            turn, events = early.turn, early.events
        else:
            events = self._response_events(new_id("resp_"), config, beside, metadata)
            turn = self._create_turn(self._spec(config, items, beside=beside), events)
        self._add_turn(turn, beside)
        begun_turn = self._log_turn(config, items, turn, beside, metadata) if self._outbox.has_log else None
        self.has_spoken = self.has_spoken or config.modality == "audio"
        self._post(events.begin(), turn=begun_turn)
        if early is None:
            turn.start(self._end_turn)

    async def drop_begun(self) -> None:
        """Cancel the work for a turn that is not complete."""
        await self.early.drop()
        await self._ahead.drop()

    async def follow_speech(self, config: SessionConfig, input: InputTurns) -> None:
        """Process speech while it continues, and cancel that work when it ends."""
        if input.is_growing and self._may_work_ahead(config):
            self._ahead.follow(config, input)
        else:
            await self._ahead.drop()

    def may_begin_early(self, config: SessionConfig) -> bool:
        """Return True if the answer may start before the user's turn ends.

        An early answer never delays a response in progress. An app never gets one: its calls may have side effects.
        """
        detection = config.turn_detection
        return detection is not None and detection.create_response and self._may_work_ahead(config)

    def _may_work_ahead(self, config: SessionConfig) -> bool:
        chats = self._context.chats
        return (
            self._context.begins_early
            and config.kind == "realtime"
            and not self._turns
            and not chats.is_served_by_app(config.model)
        )

    def _create_early(self, config: SessionConfig, items: list[ConversationItem]) -> tuple[Turn, ResponseEvents]:
        events = self._response_events(new_id("resp_"), config, False, None)
        return self._create_turn(self._spec(config, items), events, early=True), events

    def resume_turn(self, restored_turn: RestoredTurn) -> None:
        """Continue a response that another gateway has begun."""
        begun_turn = restored_turn.begun
        events = self._response_events(begun_turn.id, restored_turn.config, begun_turn.beside, begun_turn.metadata)
        events.resume(restored_turn.items)
        try:
            turn = self._create_turn(
                self._spec(restored_turn.config, restored_turn.input, restored_turn, beside=begun_turn.beside), events
            )
        except OmnibusError as error:
            self._post(events.finish("failed", {"type": "failed", "error": describe_error(error)}))
            return
        self._add_turn(turn, begun_turn.beside)
        turn.start(self._end_turn)

    def _spec(
        self,
        config: SessionConfig,
        items: list[ConversationItem],
        restored_turn: RestoredTurn | None = None,
        *,
        beside: bool = False,
    ) -> TurnSpec:
        context, conversation = self._context, "" if beside else self._conversation.id
        return TurnSpec(
            config, items, context.limit, context.chat, context.chats, restored_turn, conversation, self._outbox.has_log
        )

    def _build_request(self, config: SessionConfig, items: list[ConversationItem]) -> ChatRequest:
        return self._spec(config, items).build_request(items)

    def _response_events(
        self, id: str, config: SessionConfig, beside: bool, metadata: dict[str, str] | None
    ) -> ResponseEvents:
        return ResponseEvents(id, config, None if beside else self._conversation, new_id, metadata)

    def _create_turn(self, spec: TurnSpec, events: ResponseEvents, *, early: bool = False) -> Turn:
        return Turn(spec, events, self._post, self._outbox.wait_room, early=early)

    def _add_turn(self, turn: Turn, beside: bool) -> None:
        self._turns[turn.id] = turn
        if not beside:
            self.active = turn

    def _end_turn(self, turn: Turn, closing: list[Event]) -> None:
        """Remove the turn, then post its last events: the client may request another at once."""
        self._turns.pop(turn.id, None)
        if self.active is turn:
            self.active = None
        with suppress(TooSlow):  # the session ends then
            self._post(closing)
        self._on_over()

    def _log_turn(
        self,
        config: SessionConfig,
        input_items: Sequence[ConversationItem],
        turn: Turn,
        beside: bool,
        metadata: dict[str, str] | None,
    ) -> BegunTurn:
        """Return the log entry from which another gateway can regenerate the response."""
        conversation = self._conversation
        items = tuple(
            each.id if each.id in conversation and conversation.find_item(each.id) is each else to_logged(each)
            for each in input_items
        )
        raw_config = msgspec.Raw(encode_event(config))
        return BegunTurn(turn.id, raw_config, items, turn.seed, turn.deadline, beside, metadata)


def new_id(prefix: str) -> str:
    """Create an id with ``prefix``."""
    return f"{prefix}{token_hex(12)}"
