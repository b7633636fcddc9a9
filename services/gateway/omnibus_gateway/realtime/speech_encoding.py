"""Processing of a turn's audio while the user speaks.

Only the last windows remain when the turn ends.
Encoders that attend within windows cache the windows that they have encoded (``omnibus_encoder.known_parts``).
Language models that cache prompts of conversations cache their rows (``omnibus_llm.engine.kept_prompts``).
Each time another window is complete, the gateway sends the conversation with the audio so far to both, which compute
only the new part. If no language model caches it, the audio goes to the encoder alone. The gateway does not read the
results, and the answer does not depend on them: it computes the parts that are not cached.
"""

import asyncio
from collections.abc import Callable

from omnibus.errors import OmnibusError
from omnibus.metrics import GATEWAY
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.realtime.session import SessionConfig
from omnibus_gateway.realtime.audio_format import to_wav
from omnibus_gateway.realtime.conversation import Conversation, ConversationItem, ItemPart
from omnibus_gateway.realtime.early_answers import MAX_SECONDS
from omnibus_gateway.realtime.input_turns import InputTurns
from omnibus_gateway.tasks.chat import Chat
from omnibus_gateway.tasks.encode_ahead import AheadEncoder
from omnibus_gateway.tasks.prefill_ahead import AheadPrefill

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
