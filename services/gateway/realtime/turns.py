"""Responses of one session: those that are being made, and which of them writes to the conversation."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from secrets import token_hex
from typing import NamedTuple

import msgspec

from omnibus.errors import OmnibusError, Overloaded, TooSlow
from omnibus.recording.sessions import BegunTurn
from services.gateway.apps.chat import AppChats
from services.gateway.openai.chat_request import ChatRequest
from services.gateway.openai.realtime.session import SessionConfig, encode_event
from services.gateway.realtime.config import ModelAbilities
from services.gateway.realtime.conversation import Conversation, ConversationItem
from services.gateway.realtime.early_answers import EarlyAnswers
from services.gateway.realtime.errors import ACTIVE_RESPONSE, NO_ACTIVE_RESPONSE, EventRefused, describe_error
from services.gateway.realtime.event_sender import EventSender
from services.gateway.realtime.input_turns import InputTurns
from services.gateway.realtime.logged_items import to_logged
from services.gateway.realtime.response_events import Event, ResponseEvents
from services.gateway.realtime.restored import RestoredTurn
from services.gateway.realtime.speech_detectors import EnergyDetector, FindDetector
from services.gateway.realtime.speech_encoding import SpeechEncoding
from services.gateway.realtime.turn import CLIENT_CANCELLED, Turn, TurnSpec
from services.gateway.tasks.chat import Chat

#: Responses of one session at the same time: one of the conversation, the others beside it.
MAX_TURNS = 8


class SessionContext(NamedTuple):
    """Surroundings of a session. ``count_bytes`` is called with bytes that are held more, or fewer, and may refuse
    them; ``limit`` counts a response against the limits of the client's key; ``rate_limits`` shows these.
    ``find_detector`` finds what tells speech from other sounds; ``begins_early`` allows answers to be begun in the
    silence that may end a turn."""

    chat: Chat
    chats: Chat | AppChats
    abilities: ModelAbilities
    expires_at: int
    count_bytes: Callable[[int], None]
    limit: Callable[[], AbstractContextManager[None]]
    rate_limits: Callable[[], list[Event]]
    find_detector: FindDetector = lambda _: EnergyDetector
    begins_early: bool = False


class SessionTurns:
    """Makes responses; ``post`` takes their events, and ``on_over`` is called when one has ended."""

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
        """Responses that are being made."""
        return len(self._turns)

    def check_room(self, beside: bool) -> None:
        """Raises ``EventRefused`` and ``Overloaded`` where no other response may begin."""
        if not beside and self.active is not None:
            raise EventRefused(
                f"The conversation has an active response, {self.active.id}: wait until it is done, or cancel it.",
                ACTIVE_RESPONSE,
            )
        if len(self._turns) >= MAX_TURNS:
            raise Overloaded(f"{MAX_TURNS} responses of this session are being made: wait for one of them")

    def find_turn(self, id: str | None) -> Turn:
        """The response ``id``; without one that of the conversation, else any. Raises ``EventRefused``."""
        turn = self.active if id is None else self._turns.get(id)
        if turn is None and id is None:
            turn = next(iter(self._turns.values()), None)
        if turn is None:
            raise EventRefused("No response is being made that could be cancelled.", NO_ACTIVE_RESPONSE)
        return turn

    async def wait_over(self) -> None:
        """Wait until no response is being made."""
        while self._turns:
            await next(iter(self._turns.values())).wait_over()

    async def cancel_all(self) -> None:
        """End all responses."""
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
        """Begin to answer ``items``, or go on where this was begun early. Raises ``OmnibusError`` for what cannot be
        answered."""
        early = None if beside or metadata else self.early.take(config, items, self._end_turn)
        if early is not None:
            turn, events = early.turn, early.events
        else:
            events = self._response_events(new_id("resp_"), config, beside, metadata)
            turn = self._create_turn(self._spec(config, items, beside=beside), events)
        self._add_turn(turn, beside)
        begun = self._log_turn(config, items, turn, beside, metadata) if self._outbox.has_log else None
        self.has_spoken = self.has_spoken or config.modality == "audio"
        self._post(events.begin(), turn=begun)
        if early is None:
            turn.start(self._end_turn)

    async def drop_begun(self) -> None:
        """End what was begun for a turn that is not complete."""
        await self.early.drop()
        await self._ahead.drop()

    async def follow_speech(self, config: SessionConfig, input: InputTurns) -> None:
        """Have what is being said read while it goes on, and drop that when it ends."""
        if input.is_growing and self._may_work_ahead(config):
            self._ahead.follow(config, input)
        else:
            await self._ahead.drop()

    def may_begin_early(self, config: SessionConfig) -> bool:
        """Return whether the answer to what is being said may be begun before its turn has ended.

        An app may do more than answer, so that it is asked once; and what is being made is not held up."""
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

    def resume_turn(self, restored: RestoredTurn) -> None:
        """Go on with a response that another gateway has begun."""
        begun = restored.begun
        events = self._response_events(begun.id, restored.config, begun.beside, begun.metadata)
        events.resume(restored.items)
        try:
            turn = self._create_turn(self._spec(restored.config, restored.input, restored, beside=begun.beside), events)
        except OmnibusError as error:
            self._post(events.finish("failed", {"type": "failed", "error": describe_error(error)}))
            return
        self._add_turn(turn, begun.beside)
        turn.start(self._end_turn)

    def _spec(
        self,
        config: SessionConfig,
        items: list[ConversationItem],
        restored: RestoredTurn | None = None,
        *,
        beside: bool = False,
    ) -> TurnSpec:
        context, conversation = self._context, "" if beside else self._conversation.id
        return TurnSpec(
            config, items, context.limit, context.chat, context.chats, restored, conversation, self._outbox.has_log
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
        """Give its place free before its client sees the last event, who may ask for another response at once."""
        self._turns.pop(turn.id, None)
        if self.active is turn:
            self.active = None
        with suppress(TooSlow):  # then the session ends
            self._post(closing)
        self._on_over()

    def _log_turn(
        self,
        config: SessionConfig,
        answered: Sequence[ConversationItem],
        turn: Turn,
        beside: bool,
        metadata: dict[str, str] | None,
    ) -> BegunTurn:
        """All that another gateway needs to make it once more."""
        kept = self._conversation
        items = tuple(
            each.id if each.id in kept and kept.find_item(each.id) is each else to_logged(each) for each in answered
        )
        shown = msgspec.Raw(encode_event(config))
        return BegunTurn(turn.id, shown, items, turn.seed, turn.deadline, beside, metadata)


def new_id(prefix: str) -> str:
    """An id of something in a session."""
    return f"{prefix}{token_hex(12)}"
