"""Responses of one session in progress; at most one of them writes to the conversation."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from secrets import token_hex
from typing import NamedTuple

import msgspec

from omnibus.errors import OmnibusError, Overloaded, TooSlow
from omnibus.recording.sessions import BegunTurn
from omnibus_gateway.apps.chat import AppChats
from omnibus_gateway.apps.recordings import RecordingReader
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.realtime.session import SessionConfig, encode_event
from omnibus_gateway.realtime.config import ModelAbilities
from omnibus_gateway.realtime.conversation import Conversation, ConversationItem
from omnibus_gateway.realtime.early_answers import EarlyAnswers
from omnibus_gateway.realtime.errors import ACTIVE_RESPONSE, NO_ACTIVE_RESPONSE, EventRefused, describe_error
from omnibus_gateway.realtime.event_sender import EventSender
from omnibus_gateway.realtime.input_turns import InputTurns
from omnibus_gateway.realtime.logged_items import to_logged
from omnibus_gateway.realtime.response_events import Event, ResponseEvents
from omnibus_gateway.realtime.restored import RestoredTurn
from omnibus_gateway.realtime.speech_detectors import EnergyDetector, FindDetector
from omnibus_gateway.realtime.speech_encoding import SpeechEncoding
from omnibus_gateway.realtime.turn import CLIENT_CANCELLED, Turn, TurnSpec
from omnibus_gateway.tasks.chat import Chat

#: Maximum number of parallel responses of one session: one in the conversation, the others out of band.
MAX_TURNS = 8


class SessionContext(NamedTuple):
    """Environment of a session.

    ``count_bytes`` is called with the change of its bytes in memory, and may raise. ``limit`` counts a response against
    the limits of the client's key, and ``rate_limits`` returns those limits. ``find_detector`` returns the speech
    detector of a model. ``begins_early`` allows answers to start in the silence that may end a turn.
    """

    chat: Chat
    chats: Chat | AppChats
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
            and not (isinstance(chats, AppChats) and chats.is_served_by_app(config.model))
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
