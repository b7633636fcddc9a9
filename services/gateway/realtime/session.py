"""One client's session: what its events do to the conversation, and the responses that they ask for."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from secrets import token_hex
from typing import Any, NamedTuple

from omnibus.errors import BadRequest, OmnibusError, Overloaded
from services.gateway.apps.chat import AppChats
from services.gateway.openai.realtime import client_events as wire
from services.gateway.openai.realtime.items import RealtimeReference
from services.gateway.openai.realtime.session import ResponseOptions, SessionConfig, encode_event, is_given
from services.gateway.realtime.config import ModelAbilities, apply_options, apply_update
from services.gateway.realtime.conversation import (
    Conversation,
    ConversationItem,
    ItemPart,
    build_item,
    decode_base64,
)
from services.gateway.realtime.errors import ACTIVE_RESPONSE, NO_ACTIVE_RESPONSE, EventRefused, describe_error
from services.gateway.realtime.event_sender import EventSender
from services.gateway.realtime.input_audio import InputAudioBuffer
from services.gateway.realtime.response_events import Event, ResponseEvents, event_texts
from services.gateway.realtime.transcriber import InputTranscriber
from services.gateway.realtime.turn import CLIENT_CANCELLED, TURN_DETECTED, Turn, TurnSpec
from services.gateway.realtime.turn_detection import TurnDetector
from services.gateway.tasks.chat import Chat

#: Responses of one session at the same time: one of the conversation, the others beside it.
MAX_TURNS = 8
#: Milliseconds of audio without speech that are held, for clients that commit it themselves.
MAX_SILENCE_MS = 30_000


class SessionContext(NamedTuple):
    """Surroundings of a session. ``count_bytes`` is called with bytes that are held more, or fewer, and may refuse
    them; ``limit`` counts a response against the limits of the client's key; ``rate_limits`` shows these."""

    chat: Chat
    chats: Chat | AppChats
    abilities: ModelAbilities
    expires_at: int
    count_bytes: Callable[[int], None]
    limit: Callable[[], AbstractContextManager[None]]
    rate_limits: Callable[[], list[Event]]


class RealtimeSession:
    """Answers the events of one client through its ``outbox``."""

    def __init__(self, context: SessionContext, config: SessionConfig, outbox: EventSender) -> None:
        self.id = _new_id("sess_")
        self.config = config
        self._context = context
        self._outbox = outbox
        self._conversation = Conversation(_new_id("conv_"), context.count_bytes)
        self._input = InputAudioBuffer(config.input_format, context.count_bytes)
        self._transcriber = InputTranscriber(config.model, context.chat, context.chats, context.limit, self._post)
        self._detector = self._create_detector()
        self._speech_id = ""  # of the message that is being spoken
        self._waits_for_turn = False  # a message that is answered once the response under way is over
        self._turns: dict[str, Turn] = {}
        self._active: Turn | None = None  # the one that writes to the conversation
        self._has_spoken = False
        self._closing = False
        self._handlers: dict[type, Callable[[Any], Any]] = {
            wire.UpdateSession: self._update_session,
            wire.AppendAudio: self._append_audio,
            wire.CommitAudio: self._commit_audio,
            wire.ClearAudio: self._clear_audio,
            wire.ClearOutput: self._refuse_output_clear,
            wire.CreateItem: self._create_item,
            wire.RetrieveItem: self._retrieve_item,
            wire.TruncateItem: self._truncate_item,
            wire.DeleteItem: self._delete_item,
            wire.CreateResponse: self._create_response,
            wire.CancelResponse: self._cancel_response,
        }

    @property
    def is_responding(self) -> bool:
        """True while a response is being made."""
        return bool(self._turns)

    def begin(self) -> None:
        """Send the first events."""
        self._post([{"type": "session.created", "session": self._session_event()}])
        conversation = {"id": self._conversation.id, "object": "realtime.conversation"}
        self._post([{"type": "conversation.created", "conversation": conversation}])

    async def handle_text(self, text: str) -> None:
        """Do what the event in a frame says; whatever is wrong with it is an ``error`` event that names it."""
        try:
            event = wire.parse_client_event(text)
            done = self._handlers[type(event)](event)
            if done is not None:
                await done
        except OmnibusError as error:
            self.post_error(error, wire.read_event_id(text))
        await self._outbox.wait_room()

    def post_error(self, error: OmnibusError, event_id: str | None = None) -> None:
        """Tell the client what is wrong, by the event that it is about."""
        self._post([{"type": "error", "error": {**describe_error(error), "event_id": event_id}}])

    async def wait_responses(self) -> None:
        """Wait until no response is being made."""
        while self._turns:
            await next(iter(self._turns.values())).wait_over()

    async def close(self) -> None:
        """End all responses."""
        self._closing = True
        await self._transcriber.close()
        for turn in list(self._turns.values()):
            await turn.cancel(CLIENT_CANCELLED)

    # Session and input

    def _update_session(self, event: wire.UpdateSession) -> None:
        before = self.config
        config = apply_update(self.config, event.session, self._context.abilities, has_spoken=self._has_spoken)
        if config.transcription is not None:
            self._transcriber.find_model(config.transcription)
        self.config = config
        self._input.change_format(self.config.input_format)
        changed = (before.turn_detection, before.input_format) != (self.config.turn_detection, self.config.input_format)
        if changed:
            self._detector = self._create_detector()
        self._post([{"type": "session.updated", "session": self._session_event()}])

    def _create_detector(self) -> TurnDetector | None:
        detection = self.config.turn_detection
        return TurnDetector(detection, self._input.format, self._input.end_ms) if detection is not None else None

    async def _append_audio(self, event: wire.AppendAudio) -> None:
        data = decode_base64(event.audio, "audio")
        self._input.append_audio(data)
        if self._detector is None:
            return
        for edge in self._detector.push_audio(data):
            await (self._begin_speech(edge.at_ms) if edge.begins else self._end_speech(edge.at_ms))
        if not self._detector.is_speaking:
            self._input.drop_before(self._input.end_ms - MAX_SILENCE_MS)

    async def _begin_speech(self, at_ms: int) -> None:
        """Somebody speaks: what the model is saying stops at once."""
        self._input.drop_before(at_ms)
        self._speech_id = _new_id("item_")
        self._post([{"type": "input_audio_buffer.speech_started", "audio_start_ms": at_ms, "item_id": self._speech_id}])
        detection = self.config.turn_detection
        if self._active is not None and detection is not None and detection.interrupt_response:
            await self._active.cancel(TURN_DETECTED)

    async def _end_speech(self, at_ms: int) -> None:
        """Nobody speaks any more: what was said is a message, which the model answers."""
        self._post([{"type": "input_audio_buffer.speech_stopped", "audio_end_ms": at_ms, "item_id": self._speech_id}])
        self._add_spoken(at_ms)
        detection = self.config.turn_detection
        if detection is None or not detection.create_response:
            return
        if self._active is None:
            self._respond()
        else:
            self._waits_for_turn = True

    def _commit_audio(self, _: wire.CommitAudio) -> None:
        self._add_spoken()
        if self._detector is not None:
            self._detector.end_turn()

    def _add_spoken(self, end_ms: int | None = None) -> None:
        part = ItemPart("input_audio", audio=self._input.commit_audio(end_ms), format=self._input.format)
        id, self._speech_id = self._speech_id or _new_id("item_"), ""
        item = ConversationItem(id, "message", "user", parts=[part])
        before = self._conversation.insert_item(item)
        committed = {"type": "input_audio_buffer.committed", "previous_item_id": before, "item_id": item.id}
        self._post([committed, *_item_events(item, before)])
        if self.config.transcription is not None:
            self._transcriber.start(self.config.transcription, item)

    def _clear_audio(self, _: wire.ClearAudio) -> None:
        self._input.clear_audio()
        self._speech_id = ""
        if self._detector is not None:
            self._detector.end_turn()
        self._post([{"type": "input_audio_buffer.cleared"}])

    def _refuse_output_clear(self, event: wire.ClearOutput) -> None:
        raise BadRequest(event.refusal, param="type")

    # Items

    def _create_item(self, event: wire.CreateItem) -> None:
        item = build_item(event.item, _new_id, self._input.format)
        before = self._conversation.insert_item(item, event.previous_item_id)
        self._post(_item_events(item, before))

    def _retrieve_item(self, event: wire.RetrieveItem) -> None:
        item = self._conversation.find_item(event.item_id)
        self._post([{"type": "conversation.item.retrieved", "item": item.to_event(with_audio=True)}])

    def _truncate_item(self, event: wire.TruncateItem) -> None:
        self._conversation.truncate_item(event.item_id, event.content_index, event.audio_end_ms)
        place = {"content_index": event.content_index, "audio_end_ms": event.audio_end_ms}
        self._post([{"type": "conversation.item.truncated", "item_id": event.item_id, **place}])

    def _delete_item(self, event: wire.DeleteItem) -> None:
        self._conversation.delete_item(event.item_id)
        self._post([{"type": "conversation.item.deleted", "item_id": event.item_id}])

    # Responses

    def _create_response(self, event: wire.CreateResponse) -> None:
        options = event.response or ResponseOptions()
        beside = options.conversation == "none"
        if not beside and self._active is not None:
            raise EventRefused(
                f"The conversation has an active response, {self._active.id}: wait until it is done, or cancel it.",
                ACTIVE_RESPONSE,
            )
        if len(self._turns) >= MAX_TURNS:
            raise Overloaded(f"{MAX_TURNS} responses of this session are being made: wait for one of them")
        config = apply_options(self.config, options, self._context.abilities)
        spec = TurnSpec(
            config, self._input_items(options), self._context.limit, self._context.chat, self._context.chats
        )
        conversation = None if beside else self._conversation
        metadata = options.metadata if is_given(options.metadata) else None
        self._start_turn(spec, conversation, metadata or None)

    def _respond(self) -> None:
        """Answer the conversation as the session says. Raises as ``Turn``."""
        spec = TurnSpec(
            self.config, list(self._conversation), self._context.limit, self._context.chat, self._context.chats
        )
        self._start_turn(spec, self._conversation, None)

    def _start_turn(self, spec: TurnSpec, conversation: Conversation | None, metadata: Any) -> None:
        events = ResponseEvents(_new_id("resp_"), spec.config, conversation, _new_id, metadata)
        turn = Turn(spec, events, self._post, self._outbox.wait_room)
        self._turns[turn.id] = turn
        if conversation is not None:
            self._active = turn
        self._has_spoken = self._has_spoken or spec.config.modality == "audio"
        turn.start(self._end_turn)
        if limits := self._context.rate_limits():
            self._post([{"type": "rate_limits.updated", "rate_limits": limits}])

    def _end_turn(self, turn: Turn) -> None:
        self._turns.pop(turn.id, None)
        if self._active is turn:
            self._active = None
        if self._waits_for_turn and self._active is None and not self._closing:
            self._waits_for_turn = False
            try:
                self._respond()
            except OmnibusError as error:
                self.post_error(error)

    def _input_items(self, options: ResponseOptions) -> list[ConversationItem]:
        """The items that a response answers. Raises ``NotFound`` for a reference to none."""
        if options.input is None or not is_given(options.input):
            return list(self._conversation)
        return [
            self._conversation.find_item(each.id, f"response.input[{index}].id")
            if isinstance(each, RealtimeReference)
            else build_item(each, _new_id, self._input.format)
            for index, each in enumerate(wire.parse_response_input(options.input))
        ]

    async def _cancel_response(self, event: wire.CancelResponse) -> None:
        turn = self._active if event.response_id is None else self._turns.get(event.response_id)
        if turn is None and event.response_id is None and self._turns:
            turn = next(iter(self._turns.values()))
        if turn is None:
            raise EventRefused("No response is being made that could be cancelled.", NO_ACTIVE_RESPONSE)
        await turn.cancel(CLIENT_CANCELLED)

    # Events

    def _session_event(self) -> Event:
        return self.config.to_event(self.id, self._context.expires_at)

    def _post(self, events: Sequence[Event]) -> None:
        for text in event_texts(events, _new_id, encode_event):
            self._outbox.post_text(text)


def _item_events(item: ConversationItem, before: str | None) -> list[Event]:
    shown = {"previous_item_id": before, "item": item.to_event()}
    return [{"type": "conversation.item.added", **shown}, {"type": "conversation.item.done", **shown}]


def _new_id(prefix: str) -> str:
    return f"{prefix}{token_hex(12)}"
