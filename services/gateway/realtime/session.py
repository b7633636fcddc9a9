"""One client's session: what its events do to the conversation, and the responses that they ask for."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from omnibus.api_key import hash_key
from omnibus.errors import BadRequest, OmnibusError
from omnibus.recording.sessions import InsertedItem, SessionEntry, SessionOrigin, TruncatedItem
from services.gateway.openai.realtime import client_events as wire
from services.gateway.openai.realtime.items import RealtimeReference
from services.gateway.openai.realtime.session import ResponseOptions, SessionConfig, encode_event, is_given
from services.gateway.realtime.config import apply_options, apply_update
from services.gateway.realtime.conversation import (
    Conversation,
    ConversationItem,
    ItemPart,
    build_item,
    decode_base64,
)
from services.gateway.realtime.errors import describe_error, require_item
from services.gateway.realtime.event_sender import EventSender
from services.gateway.realtime.input_turns import InputTurns
from services.gateway.realtime.logged_items import to_logged
from services.gateway.realtime.response_events import Event, encode_events
from services.gateway.realtime.restored import RestoredSession
from services.gateway.realtime.resume_token import event_id
from services.gateway.realtime.transcriber import InputTranscriber
from services.gateway.realtime.turn import CLIENT_CANCELLED, TURN_DETECTED
from services.gateway.realtime.turn_detection import SpeechEdge
from services.gateway.realtime.turns import SessionContext, SessionTurns, new_id


class RealtimeSession:
    """Answers the events of one client through its ``outbox``. One that is ``restored`` goes on where it was."""

    def __init__(
        self,
        id: str,
        context: SessionContext,
        config: SessionConfig,
        outbox: EventSender,
        restored: RestoredSession | None = None,
    ) -> None:
        self.id = id
        self.config = config
        self._context = context
        self._outbox = outbox
        known_input = restored.input if restored is not None else None
        self._input = InputTurns(config, context.count_bytes, known_input, context.find_detector)
        self._transcriber = InputTranscriber(
            config.model,
            context.chat,
            context.chats,
            context.limit,
            self._post,
            self._write_down,
        )
        self._waits_for_turn = False  # a message that is answered once the response under way is over
        self._closing = False
        self._posted = 0  # events
        if restored is None:
            self._conversation = Conversation(new_id("conv_"), context.count_bytes)
        else:
            self._conversation = restored.conversation
            self._conversation.count_with(context.count_bytes)
            self._waits_for_turn, self._posted = restored.waits_for_turn, len(restored.events)
        self._turns = SessionTurns(context, self._conversation, self._post, outbox, self._on_turn_over)
        self._turns.has_spoken = restored is not None and restored.has_spoken
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
        return self._turns.count > 0

    def begin(self, token: str = "", tenant: str = "") -> None:
        """Send the first events. With ``token`` the session can be resumed by clients of ``tenant``."""
        shown = self._session_event() | ({"resume_token": token} if token else {})
        origin = SessionOrigin(
            self.config.model, self._context.expires_at, self._conversation.id, hash_key(token), tenant
        )
        config = msgspec.Raw(encode_event(self.config))
        self._post([{"type": "session.created", "session": shown}], origin=origin, config=config)
        conversation = {"id": self._conversation.id, "object": "realtime.conversation"}
        self._post([{"type": "conversation.created", "conversation": conversation}])

    async def resume(self, restored: RestoredSession, seen: int) -> None:
        """Send what the client has not seen, which had the first ``seen`` events, and go on with what was under way."""
        self._outbox.post_texts([body.decode() for body in restored.events[seen:]])
        self._post(
            [
                {
                    "type": "session.resumed",
                    "session": self._session_event(),
                    "input_audio_bytes": self._input.end_bytes,
                    "active_responses": list(restored.turns),
                }
            ]
        )
        for turn in restored.turns.values():
            self._turns.resume_turn(turn)
        for id, known in restored.transcripts.items():
            if self.config.transcription is not None and id in self._conversation:
                self._transcriber.start(self.config.transcription, self._conversation.find_item(id), known)
        detection = self.config.turn_detection
        if self._input.speech_id and detection is not None and detection.interrupt_response and self._turns.active:
            await self._turns.active.cancel(TURN_DETECTED)
        elif self._waits_for_turn and self._turns.active is None:
            self._answer_waiting()

    async def handle_text(self, text: str) -> None:
        """Do what the event in a frame says; whatever is wrong with it is an ``error`` event that names it."""
        try:
            event = wire.parse_client_event(text)
            if not isinstance(event, wire.AppendAudio):
                await self._turns.drop_begun()
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
        await self._turns.wait_over()

    async def close(self, *, over: str) -> None:
        """End all responses; ``over`` is why the session has ended for good, empty where it can be resumed."""
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
        self._input.configure(config)
        shown = {"type": "session.updated", "session": self._session_event()}
        self._post([shown], config=msgspec.Raw(encode_event(config)))

    async def _append_audio(self, event: wire.AppendAudio) -> None:
        frames = await self._input.append_audio(decode_base64(event.audio, "audio"))
        for edge in self._input.find_edges(frames):
            try:
                await (self._begin_speech(edge.at_ms) if edge.begins else self._end_speech(edge))
            except OmnibusError as error:  # the audio behind it is taken all the same
                self.post_error(error, event.event_id)
        await self._follow_pause()
        self._post([])

    async def _follow_pause(self) -> None:
        """Encode what is being said, begin to answer it in each pause, and drop that where it goes on."""
        input, at_ms = self._input, self._input.pause_ms
        await self._turns.follow_speech(self.config, input)
        if at_ms is None:
            await self._turns.early.drop()
        elif self._turns.may_begin_early(self.config) and self._turns.early.is_due(
            input.speech_id, input.begin_ms, at_ms
        ):
            await self._turns.early.drop()
            part = ItemPart("input_audio", audio=input.read_until(at_ms), format=self.config.input_format)
            item = ConversationItem(input.speech_id, "message", "user", parts=[part])
            self._turns.early.begin(self.config, [*self._conversation, item])

    async def _begin_speech(self, at_ms: int) -> None:
        """Somebody speaks: what the model is saying stops at once."""
        id = new_id("item_")
        self._input.begin_speech(at_ms, id)
        self._post([{"type": "input_audio_buffer.speech_started", "audio_start_ms": at_ms, "item_id": id}])
        detection = self.config.turn_detection
        if self._turns.active is not None and detection is not None and detection.interrupt_response:
            await self._turns.active.cancel(TURN_DETECTED)

    async def _end_speech(self, edge: SpeechEdge) -> None:
        """Nobody speaks any more: what was said is a message, which the model answers."""
        id = self._input.speech_id
        self._post([{"type": "input_audio_buffer.speech_stopped", "audio_end_ms": edge.at_ms, "item_id": id}])
        self._add_spoken(edge)
        detection = self.config.turn_detection
        if detection is None or not detection.create_response or self.config.kind == "transcription":
            return
        if self._turns.active is None:
            self._respond()
        else:
            self._waits_for_turn = True
            self._post([], waits=True)

    def _commit_audio(self, _: wire.CommitAudio) -> None:
        self._add_spoken()
        self._input.end_turn()

    def _add_spoken(self, end: SpeechEdge | None = None) -> None:
        if self.config.kind == "transcription" and self.config.transcription is None:
            self._input.clear_audio()
            raise BadRequest(
                "Nobody transcribes the audio: set a model first.", param="session.audio.input.transcription.model"
            )
        self._conversation.check_room()
        id = self._input.speech_id or new_id("item_")
        part = ItemPart("input_audio", format=self.config.input_format)
        if end is not None:
            part.model_bytes = len(self._input.read_until(end.cutoff_ms))
        part.audio = self._input.commit_audio(end.at_ms if end is not None else None)
        item = ConversationItem(id, "message", "user", parts=[part])
        before = self._conversation.insert_item(item)
        committed = {"type": "input_audio_buffer.committed", "previous_item_id": before, "item_id": item.id}
        self._post([committed, *_item_events(item, before)], inserted=self._log_item(item))
        if self.config.transcription is not None:
            self._transcriber.start(self.config.transcription, item)

    def _write_down(self, id: str, transcript: str) -> None:
        """Words are all that a session of transcription holds of an item that has been written down."""
        if id in self._conversation:
            self._conversation.write_down(id, transcript, keeps_audio=self.config.kind != "transcription")

    def _clear_audio(self, _: wire.ClearAudio) -> None:
        self._input.clear_audio()
        self._post([{"type": "input_audio_buffer.cleared"}])

    def _refuse_output_clear(self, event: wire.ClearOutput) -> None:
        raise BadRequest(event.refusal, param="type")

    # Items

    def _create_item(self, event: wire.CreateItem) -> None:
        item = build_item(event.item, new_id, self.config.input_format)
        before = self._conversation.insert_item(item, event.previous_item_id)
        self._post(_item_events(item, before), inserted=self._log_item(item, event.previous_item_id))

    def _retrieve_item(self, event: wire.RetrieveItem) -> None:
        require_item(self._conversation, event.item_id, "retrieve")
        item = self._conversation.find_item(event.item_id)
        self._post([{"type": "conversation.item.retrieved", "item": item.to_event(with_audio=True)}])

    def _truncate_item(self, event: wire.TruncateItem) -> None:
        require_item(self._conversation, event.item_id, "truncate")
        self._conversation.truncate_item(event.item_id, event.content_index, event.audio_end_ms)
        place = {"content_index": event.content_index, "audio_end_ms": event.audio_end_ms}
        truncated = TruncatedItem(event.item_id, event.content_index, event.audio_end_ms)
        self._post([{"type": "conversation.item.truncated", "item_id": event.item_id, **place}], truncated=truncated)

    def _delete_item(self, event: wire.DeleteItem) -> None:
        require_item(self._conversation, event.item_id, "delete")
        self._conversation.delete_item(event.item_id)
        self._post([{"type": "conversation.item.deleted", "item_id": event.item_id}], deleted=event.item_id)

    # Responses

    def _create_response(self, event: wire.CreateResponse) -> None:
        if self.config.kind == "transcription":
            raise BadRequest("A session of transcription makes no responses: open a realtime session.", param="type")
        options = event.response or ResponseOptions()
        beside, turns = options.conversation == "none", self._turns
        turns.check_room(beside)
        config = apply_options(self.config, options, self._context.abilities)
        metadata = options.metadata if is_given(options.metadata) else None
        turns.begin_turn(config, self._input_items(options), beside, metadata or None)
        self._post_rate_limits()

    def _respond(self) -> None:
        """Answer the conversation as the session says. Raises as ``Turn``."""
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
        """The items that a response answers. Raises ``NotFound`` for a reference to none."""
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

    # Events

    def _session_event(self) -> Event:
        return self.config.to_event(self.id, self._context.expires_at)

    def _post(self, events: Sequence[Event], **changes: Any) -> None:
        """Send ``events``. ``changes`` are fields of ``SessionEntry``: what the log has to know besides."""
        bodies = encode_events(events, self._next_event_id, encode_event)
        entry = self._build_entry(bodies, changes) if self._outbox.has_log else None
        if bodies or entry is not None:
            self._outbox.post_texts([body.decode() for body in bodies], entry)

    def _next_event_id(self) -> str:
        self._posted += 1
        return event_id(self.id, self._posted)

    def _build_entry(self, bodies: Sequence[bytes], changes: Mapping[str, Any]) -> SessionEntry | None:
        input = self._input.take_change()
        if not bodies and input is None and not any(value not in (None, {}, "") for value in changes.values()):
            return None
        return SessionEntry(at=time.time(), events=tuple(map(msgspec.Raw, bodies)), input=input, **changes)

    def _log_item(self, item: ConversationItem, after: str | None = None) -> InsertedItem | None:
        return InsertedItem(to_logged(item), after) if self._outbox.has_log else None


def _item_events(item: ConversationItem, before: str | None) -> list[Event]:
    shown = {"previous_item_id": before, "item": item.to_event()}
    return [{"type": "conversation.item.added", **shown}, {"type": "conversation.item.done", **shown}]
