"""Conversion of input audio to messages. The model processes them while the user speaks."""

from collections.abc import Callable

from omnibus.errors import BadRequest, OmnibusError
from omnibus_gateway.openai.realtime.client_events import AppendAudio, ClearAudio, CommitAudio
from omnibus_gateway.openai.realtime.session import SessionConfig
from omnibus_gateway.realtime.conversation import Conversation, ConversationItem, ItemPart, decode_base64
from omnibus_gateway.realtime.input_turns import InputTurns
from omnibus_gateway.realtime.session_events import SessionEvents
from omnibus_gateway.realtime.transcriber import InputTranscriber
from omnibus_gateway.realtime.turn import TURN_DETECTED
from omnibus_gateway.realtime.turn_detection import SpeechEdge
from omnibus_gateway.realtime.turns import SessionTurns, new_id


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
