"""Transcripts of user audio, made in parallel to the conversation: only clients receive them, not models."""

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from omnibus.errors import BadRequest
from omnibus.task.library import TranscribeParams
from omnibus_gateway.core import AnswerAccumulator
from omnibus_gateway.media.inspect import MediaLimits, inspect_files
from omnibus_gateway.openai import chat_request as chats
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.errors import client_error
from omnibus_gateway.openai.realtime.session import InputTranscription
from omnibus_gateway.openai.transcriptions import SYSTEM, convert_usage, instruct_transcription
from omnibus_gateway.realtime.config import to_wav
from omnibus_gateway.realtime.conversation import ConversationItem, Event, encode_base64
from omnibus_gateway.realtime.event_sender import describe_error
from omnibus_gateway.realtime.turn import KnownOutput
from omnibus_gateway.tasks.chat import Chat, Chats
from omnibus_gateway.tasks.chat_response import open_output_streams
from omnibus_gateway.tasks.recognition import RecordingReader

#: Names of OpenAI's models that clients send by default: the session's own model transcribes instead.
_HABITUAL_MODELS = re.compile(r"whisper-1|gpt-[a-z0-9.-]*(transcribe|whisper)[a-z0-9-]*")
_PREFIX = "conversation.item.input_audio_transcription"


def require_hearing(chat: Chat, chats: Chats, recordings: RecordingReader, model: str, param: str) -> None:
    """Raise ``NotFound``, or ``BadRequest`` if the model has no audio input; app models that chat are not checked."""
    if recordings.reads(model) or chats.is_served_by_app(model):
        return
    try:
        chat.require_encoder(model, "audio")
    except BadRequest as error:
        error.param = param
        raise


class InputTranscriber:
    """Transcribes the committed audio of a session with model ``model``; ``post`` takes the events.

    ``on_transcript`` is called with the id of an item and its transcript; it may raise if there is no room.
    """

    def __init__(
        self,
        model: str,
        chat: Chat,
        all_chats: Chats,
        recordings: RecordingReader,
        limit: Callable[[], AbstractContextManager[None]],
        post: Callable[[Sequence[Event]], None],
        on_transcript: Callable[[str, str], None],
    ) -> None:
        self._model = model
        self._chat = chat
        self._chats = all_chats
        self._recordings = recordings
        self._limit = limit
        self._post = post
        self._on_transcript = on_transcript
        self._tasks: set[asyncio.Task[None]] = set()

    def find_model(self, config: InputTranscription) -> str:
        """Return the transcription model. Raises ``NotFound``, and ``BadRequest`` if it has no audio input."""
        model = self._model if _HABITUAL_MODELS.fullmatch(config.model) else config.model
        if not model:
            raise BadRequest(
                f"{config.model} is not served here: name a model of /v1/models with audio input.",
                param="session.audio.input.transcription.model",
            )
        require_hearing(self._chat, self._chats, self._recordings, model, "session.audio.input.transcription.model")
        return model

    def start(self, config: InputTranscription, item: ConversationItem, known_text: str = "") -> None:
        """Start to transcribe the audio of ``item``; the client already has the prefix ``known_text``."""
        task = asyncio.get_running_loop().create_task(self._transcribe(config, item, known_text))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel all transcriptions."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _transcribe(self, config: InputTranscription, item: ConversationItem, known_text: str) -> None:
        place = {"item_id": item.id, "content_index": 0}
        try:
            with self._limit():
                got = await self._answer(config, item, known_text)
            self._on_transcript(item.id, got.text)
        except Exception as error:  # noqa: BLE001 the client gets it
            self._post([{"type": f"{_PREFIX}.failed", **place, "error": describe_error(client_error(error, item.id))}])
            return
        usage = convert_usage(got.usage())
        self._post([{"type": f"{_PREFIX}.completed", **place, "transcript": got.text, "usage": usage}])

    async def _answer(self, config: InputTranscription, item: ConversationItem, known_text: str) -> AnswerAccumulator:
        place, output_known = {"item_id": item.id, "content_index": 0}, KnownOutput.of_text(known_text)
        model = self.find_model(config)
        if self._recordings.reads(model):
            return await self._read(model, config, item, output_known)
        request = _build_request(model, config, item)
        run = self._chats.open_request(request.model)
        got = run.open_answer()
        async with run.until_end():
            output = await self._chats.begin_answer(run, await self._chat.prepare_request(run, request))
            async for batch in run.read_outputs(open_output_streams(output)):
                for _, part in batch:
                    if text := output_known.skip_text(part.data.get("text") or ""):
                        self._post([{"type": f"{_PREFIX}.delta", **place, "delta": text}])
        return got

    async def _read(
        self, model: str, config: InputTranscription, item: ConversationItem, output_known: KnownOutput
    ) -> AnswerAccumulator:
        """Transcribe with a recognizer, or with an app's function."""
        [recording] = await inspect_files([(_wav_file(item), "audio/wav")], "audio", MediaLimits(), "audio")
        params: TranscribeParams = {"language": config.language, "prompt": config.prompt or ""}
        place, run = {"item_id": item.id, "content_index": 0}, self._recordings.open_request(model)
        got = run.open_answer()
        async with run.until_end():
            async for chunk in self._recordings.read(run, model, recording, params):
                got.add_transcript(chunk)
                if text := output_known.skip_text(chunk.text):
                    self._post([{"type": f"{_PREFIX}.delta", **place, "delta": text}])
        return got


def _wav_file(item: ConversationItem) -> bytes:
    part = item.parts[0]
    if part.format is None:
        raise BadRequest("The item has no audio.")
    return to_wav(part.audio, part.format)


def _build_request(model: str, config: InputTranscription, item: ConversationItem) -> ChatRequest:
    input_audio = chats.InputAudio(encode_base64(_wav_file(item)), "wav")
    instructions = instruct_transcription(config.language, config.prompt)
    content: list[chats.UserPart] = [chats.TextPart(instructions), chats.InputAudioPart(input_audio)]
    return ChatRequest(model=model, messages=[chats.SystemMessage(SYSTEM), chats.UserMessage(content)], temperature=0.0)
