"""Session of one client: its events change the conversation and request responses.

Its outgoing events are numbered, and logged with the state that another gateway needs. Input audio becomes messages,
which the model processes while the user speaks.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from omnibus.api_key import hash_key
from omnibus.errors import BadRequest, OmnibusError
from omnibus.recording.sessions import InsertedItem, SessionEntry, SessionOrigin, TruncatedItem
from omnibus_gateway.openai.realtime import client_events as wire
from omnibus_gateway.openai.realtime.client_events import AppendAudio, ClearAudio, CommitAudio
from omnibus_gateway.openai.realtime.session import (
    RealtimeReference,
    ResponseOptions,
    SessionConfig,
    encode_event,
    is_given,
)
from omnibus_gateway.realtime.config import apply_options, apply_update, event_id
from omnibus_gateway.realtime.conversation import (
    Conversation,
    ConversationItem,
    Event,
    ItemPart,
    build_item,
    decode_base64,
    encode_events,
)
from omnibus_gateway.realtime.event_sender import EventSender, describe_error, require_item
from omnibus_gateway.realtime.input_turns import InputTurns, SpeechEdge
from omnibus_gateway.realtime.restored import RestoredSession, to_logged
from omnibus_gateway.realtime.transcriber import InputTranscriber
from omnibus_gateway.realtime.turn import CLIENT_CANCELLED, TURN_DETECTED
from omnibus_gateway.realtime.turns import SessionContext, SessionTurns, new_id


class SessionEvents:
    """Numbers and posts events of session ``id``; ``posted_count`` is the last number.

    The next log entry contains the changes of its ``input`` since the last one.
    """

    def __init__(self, id: str, outbox: EventSender, input: InputTurns, posted_count: int = 0) -> None:
        self._id = id
        self._outbox = outbox
        self._input = input
        self._posted = posted_count

    def post(self, events: Sequence[Event], **changes: Any) -> None:
        """Send ``events``. ``changes`` are further fields of ``SessionEntry`` for the log."""
        bodies = encode_events(events, self._next_event_id, encode_event)
        entry = self._build_entry(bodies, changes) if self._outbox.has_log else None
        if bodies or entry is not None:
            self._outbox.post_texts([body.decode() for body in bodies], entry)

    def post_error(self, error: OmnibusError, event_id: str | None = None) -> None:
        """Send an ``error`` event about the event ``event_id``."""
        self.post([{"type": "error", "error": {**describe_error(error), "event_id": event_id}}])

    def post_item(self, item: ConversationItem, before: str | None, after: str | None = None) -> None:
        """Announce ``item``, inserted after ``before``; ``after`` is the position that the client requested."""
        self.post(_describe_item(item, before), inserted=self._log_item(item, after))

    def post_committed(self, item: ConversationItem, before: str | None) -> None:
        """Announce that the input audio is ``item``, inserted after ``before``."""
        committed_event = {"type": "input_audio_buffer.committed", "previous_item_id": before, "item_id": item.id}
        self.post([committed_event, *_describe_item(item, before)], inserted=self._log_item(item, None))

    def _next_event_id(self) -> str:
        self._posted += 1
        return event_id(self._id, self._posted)

    def _build_entry(self, bodies: Sequence[bytes], changes: Mapping[str, Any]) -> SessionEntry | None:
        input = self._input.take_change()
        if not bodies and input is None and not any(value not in (None, {}, "") for value in changes.values()):
            return None
        return SessionEntry(at=time.time(), events=tuple(map(msgspec.Raw, bodies)), input=input, **changes)

    def _log_item(self, item: ConversationItem, after: str | None) -> InsertedItem | None:
        return InsertedItem(to_logged(item), after) if self._outbox.has_log else None


def _describe_item(item: ConversationItem, before: str | None) -> list[Event]:
    item_fields = {"previous_item_id": before, "item": item.to_event()}
    return [{"type": "conversation.item.added", **item_fields}, {"type": "conversation.item.done", **item_fields}]


class SpokenInput:
    """Makes messages of input audio; calls ``answer_message`` after a detected turn."""

    def __init__(
        self,
        config: SessionConfig,
        input: InputTurns,
        conversation: Conversation,
        turns: SessionTurns,
        transcriber: InputTranscriber,
        events: SessionEvents,
        answer_message: Callable[[], None],
    ) -> None:
        self._config = config
        self._input = input
        self._conversation = conversation
        self._turns = turns
        self._transcriber = transcriber
        self._events = events
        self._answer_message = answer_message

    def configure(self, config: SessionConfig) -> None:
        """Apply ``config`` to the audio that follows."""
        self._config = config
        self._input.configure(config)

    async def append(self, event: AppendAudio) -> None:
        """Append audio. Raises ``BadRequest``, ``TooLarge`` and ``Overloaded``."""
        frames = await self._input.append_audio(decode_base64(event.audio, "audio"))
        for edge in self._input.find_edges(frames):
            try:
                await (self._begin_speech(edge.at_ms) if edge.begins else self._end_speech(edge))
            except OmnibusError as error:  # the audio after the edge is still accepted
                self._events.post_error(error, event.event_id)
        await self._follow_pause()
        self._events.post([])

    def commit(self, _: CommitAudio) -> None:
        """Make a message of the buffered audio. Raises ``EventRefused`` if empty, ``BadRequest`` and ``Overloaded``."""
        self._add_message()
        self._input.end_turn()

    def clear(self, _: ClearAudio) -> None:
        """Drop the buffered audio."""
        self._input.clear_audio()
        self._events.post([{"type": "input_audio_buffer.cleared"}])

    async def interrupt(self) -> bool:
        """Cancel the response in progress if speech may interrupt it; returns True if it did."""
        active, detection = self._turns.active, self._config.turn_detection
        if active is None or detection is None or not detection.interrupt_response:
            return False
        await active.cancel(TURN_DETECTED)
        return True

    async def _follow_pause(self) -> None:
        """Encode speech; start an early answer in each pause, and drop it when speech continues."""
        input, at_ms = self._input, self._input.pause_ms
        await self._turns.follow_speech(self._config, input)
        if at_ms is None:
            await self._turns.early.drop()
        elif self._turns.may_begin_early(self._config) and self._turns.early.is_due(
            input.speech_id, input.begin_ms, at_ms
        ):
            await self._turns.early.drop()
            part = ItemPart("input_audio", audio=input.read_until(at_ms), format=self._config.input_format)
            item = ConversationItem(input.speech_id, "message", "user", parts=[part])
            self._turns.early.begin(self._config, [*self._conversation, item])

    async def _begin_speech(self, at_ms: int) -> None:
        """Begin a message of the user, and interrupt the response in progress."""
        id = new_id("item_")
        self._input.begin_speech(at_ms, id)
        self._events.post([{"type": "input_audio_buffer.speech_started", "audio_start_ms": at_ms, "item_id": id}])
        await self.interrupt()

    async def _end_speech(self, edge: SpeechEdge) -> None:
        """Make a message of the finished speech, and have it answered."""
        id = self._input.speech_id
        self._events.post([{"type": "input_audio_buffer.speech_stopped", "audio_end_ms": edge.at_ms, "item_id": id}])
        self._add_message(edge)
        detection = self._config.turn_detection
        if detection is not None and detection.create_response and self._config.kind != "transcription":
            self._answer_message()

    def _add_message(self, end: SpeechEdge | None = None) -> None:
        if self._config.kind == "transcription" and self._config.transcription is None:
            self._input.clear_audio()
            raise BadRequest(
                "The session has no transcription model: set one before you send audio.",
                param="session.audio.input.transcription.model",
            )
        self._conversation.check_room()
        id = self._input.speech_id or new_id("item_")
        part = ItemPart("input_audio", format=self._config.input_format)
        if end is not None:
            part.model_bytes = len(self._input.read_until(end.cutoff_ms))
        part.audio = self._input.commit_audio(end.at_ms if end is not None else None)
        item = ConversationItem(id, "message", "user", parts=[part])
        self._events.post_committed(item, self._conversation.insert_item(item))
        if self._config.transcription is not None:
            self._transcriber.start(self._config.transcription, item)


class RealtimeSession:
    """Session of one client: handles its events, and replies through ``outbox``.

    A ``restored_session`` session continues where it was.
    """

    def __init__(
        self,
        id: str,
        context: SessionContext,
        config: SessionConfig,
        outbox: EventSender,
        restored_session: RestoredSession | None = None,
    ) -> None:
        self.id = id
        self.config = config
        self._context = context
        self._outbox = outbox
        known_input = restored_session.input if restored_session is not None else None
        self._input = InputTurns(config, context.count_bytes, known_input, context.find_detector)
        self._events = SessionEvents(
            id, outbox, self._input, len(restored_session.events) if restored_session is not None else 0
        )
        self._post = self._events.post
        # A message is answered once the response in progress is over.
        self._waits_for_turn = restored_session is not None and restored_session.waits_for_turn
        self._closing = False
        self._transcriber = InputTranscriber(
            config.model,
            context.chat,
            context.chats,
            context.recordings,
            context.limit,
            self._post,
            self._write_down,
        )
        if restored_session is None:
            self._conversation = Conversation(new_id("conv_"), context.count_bytes)
        else:
            self._conversation = restored_session.conversation
            self._conversation.count_with(context.count_bytes)
        self._turns = SessionTurns(context, self._conversation, self._post, outbox, self._on_turn_over)
        self._turns.has_spoken = restored_session is not None and restored_session.has_spoken
        self._spoken = SpokenInput(
            config, self._input, self._conversation, self._turns, self._transcriber, self._events, self._answer_message
        )
        self._handlers: dict[type, Callable[[Any], Any]] = {
            wire.UpdateSession: self._update_session,
            wire.AppendAudio: self._spoken.append,
            wire.CommitAudio: self._spoken.commit,
            wire.ClearAudio: self._spoken.clear,
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
        """True while a response is in progress."""
        return self._turns.count > 0

    def begin(self, token: str = "", tenant: str = "") -> None:
        """Send the first events. With ``token``, clients of ``tenant`` can resume the session."""
        session_event = self._session_event() | ({"resume_token": token} if token else {})
        origin = SessionOrigin(
            self.config.model, self._context.expires_at, self._conversation.id, hash_key(token), tenant
        )
        config = msgspec.Raw(encode_event(self.config))
        self._post([{"type": "session.created", "session": session_event}], origin=origin, config=config)
        conversation = {"id": self._conversation.id, "object": "realtime.conversation"}
        self._post([{"type": "conversation.created", "conversation": conversation}])

    async def resume(self, restored_session: RestoredSession, seen_count: int) -> None:
        """Send the events after the first ``seen_count`` ones, then continue the responses."""
        self._outbox.post_texts([body.decode() for body in restored_session.events[seen_count:]])
        self._post(
            [
                {
                    "type": "session.resumed",
                    "session": self._session_event(),
                    "input_audio_bytes": self._input.end_bytes,
                    "active_responses": list(restored_session.turns),
                }
            ]
        )
        for turn in restored_session.turns.values():
            self._turns.resume_turn(turn)
        for id, known_text in restored_session.transcripts.items():
            if self.config.transcription is not None and id in self._conversation:
                self._transcriber.start(self.config.transcription, self._conversation.find_item(id), known_text)
        if self._input.speech_id and await self._spoken.interrupt():
            return
        if self._waits_for_turn and self._turns.active is None:
            self._answer_waiting()

    async def handle_text(self, text: str) -> None:
        """Handle the event in a frame; an invalid one gets an ``error`` event with its id."""
        try:
            event = wire.parse_client_event(text)
            if not isinstance(event, wire.AppendAudio):
                await self._turns.drop_begun()
            awaitable = self._handlers[type(event)](event)
            if awaitable is not None:
                await awaitable
        except OmnibusError as error:
            self.post_error(error, wire.read_event_id(text))
        await self._outbox.wait_room()

    def post_error(self, error: OmnibusError, event_id: str | None = None) -> None:
        """Send an ``error`` event about the event ``event_id``."""
        self._events.post_error(error, event_id)

    async def wait_responses(self) -> None:
        """Wait until no response is in progress."""
        await self._turns.wait_over()

    async def close(self, *, over: str) -> None:
        """Cancel all responses. ``over`` is why the session has ended for good, empty if it can be resumed."""
        self._closing = True
        if not over:
            self._outbox.close()
        await self._transcriber.close()
        await self._turns.cancel_all()
        if over:
            self._post([], over=over)

    # Session and input

    def _update_session(self, event: wire.UpdateSession) -> None:
        config = apply_update(self.config, event.session, self._context.abilities, has_spoken=self._turns.has_spoken)
        if config.transcription is not None:
            self._transcriber.find_model(config.transcription)
        self.config = config
        self._spoken.configure(config)
        updated_event = {"type": "session.updated", "session": self._session_event()}
        self._post([updated_event], config=msgspec.Raw(encode_event(config)))

    def _answer_message(self) -> None:
        """Answer the latest message, once the response in progress is over."""
        if self._turns.active is None:
            self._respond()
        else:
            self._waits_for_turn = True
            self._post([], waits=True)

    def _write_down(self, id: str, transcript: str) -> None:
        """Store a transcript; a transcription session drops the audio then."""
        if id in self._conversation:
            self._conversation.write_down(id, transcript, keeps_audio=self.config.kind != "transcription")

    def _refuse_output_clear(self, event: wire.ClearOutput) -> None:
        raise BadRequest(event.refusal, param="type")

    # Items

    def _create_item(self, event: wire.CreateItem) -> None:
        item = build_item(event.item, new_id, self.config.input_format)
        before = self._conversation.insert_item(item, event.previous_item_id)
        self._events.post_item(item, before, event.previous_item_id)

    def _retrieve_item(self, event: wire.RetrieveItem) -> None:
        require_item(self._conversation, event.item_id, "retrieve")
        item = self._conversation.find_item(event.item_id)
        self._post([{"type": "conversation.item.retrieved", "item": item.to_event(with_audio=True)}])

    def _truncate_item(self, event: wire.TruncateItem) -> None:
        require_item(self._conversation, event.item_id, "truncate")
        self._conversation.truncate_item(event.item_id, event.content_index, event.audio_end_ms)
        place = {"content_index": event.content_index, "audio_end_ms": event.audio_end_ms}
        truncated_item = TruncatedItem(event.item_id, event.content_index, event.audio_end_ms)
        self._post(
            [{"type": "conversation.item.truncated", "item_id": event.item_id, **place}], truncated=truncated_item
        )

    def _delete_item(self, event: wire.DeleteItem) -> None:
        require_item(self._conversation, event.item_id, "delete")
        self._conversation.delete_item(event.item_id)
        self._post([{"type": "conversation.item.deleted", "item_id": event.item_id}], deleted=event.item_id)

    # Responses

    def _create_response(self, event: wire.CreateResponse) -> None:
        if self.config.kind == "transcription":
            raise BadRequest("A transcription session cannot create responses: open a realtime session.", param="type")
        options = event.response or ResponseOptions()
        beside, turns = options.conversation == "none", self._turns
        turns.check_room(beside)
        config = apply_options(self.config, options, self._context.abilities)
        metadata = options.metadata if is_given(options.metadata) else None
        turns.begin_turn(config, self._input_items(options), beside, metadata or None)
        self._post_rate_limits()

    def _respond(self) -> None:
        """Answer the conversation with the session's configuration. Raises as ``Turn``."""
        self._turns.begin_turn(self.config, list(self._conversation))
        self._post_rate_limits()

    def _post_rate_limits(self) -> None:
        if limits := self._context.rate_limits():
            self._post([{"type": "rate_limits.updated", "rate_limits": limits}])

    def _on_turn_over(self) -> None:
        if self._waits_for_turn and self._turns.active is None and not self._closing:
            self._answer_waiting()

    def _answer_waiting(self) -> None:
        self._waits_for_turn = False
        self._post([], waits=False)
        try:
            self._respond()
        except OmnibusError as error:
            self.post_error(error)

    def _input_items(self, options: ResponseOptions) -> list[ConversationItem]:
        """Return the items that a response answers. Raises ``NotFound`` for an unknown reference."""
        if options.input is None or not is_given(options.input):
            return list(self._conversation)
        return [
            self._conversation.find_item(each.id, f"response.input[{index}].id")
            if isinstance(each, RealtimeReference)
            else build_item(each, new_id, self.config.input_format)
            for index, each in enumerate(wire.parse_response_input(options.input))
        ]

    async def _cancel_response(self, event: wire.CancelResponse) -> None:
        await self._turns.find_turn(event.response_id).cancel(CLIENT_CANCELLED)

    def _session_event(self) -> Event:
        return self.config.to_event(self.id, self._context.expires_at)
