"""Audio of a turn that is read while its user speaks, so that behind its end only the last windows are left.

Encoders that attend within windows keep those that they have encoded (``services/encoder/known_parts.py``), and
language models that keep prompts of conversations the rows of them (``services/llm/engine/kept_prompts.py``). Each time
that another window is complete, the conversation with all that was said so far is sent to both, which compute what is
new of it; where no language model keeps it, what was said goes to the encoder alone. Nothing is read of that here, and
nothing depends on it: the answer computes what was not kept.
"""

import asyncio
from collections.abc import Callable

from omnibus.errors import OmnibusError
from omnibus.metrics import GATEWAY
from services.gateway.openai.chat_request import ChatRequest
from services.gateway.openai.realtime.session import SessionConfig
from services.gateway.realtime.audio_format import to_wav
from services.gateway.realtime.conversation import Conversation, ConversationItem, ItemPart
from services.gateway.realtime.early_answers import MAX_SECONDS
from services.gateway.realtime.input_turns import InputTurns
from services.gateway.tasks.chat import Chat
from services.gateway.tasks.encode_ahead import AheadEncoder
from services.gateway.tasks.prefill_ahead import AheadPrefill

#: Milliseconds behind a window that are sent with it: the encoder keeps all windows but the last one, which may not be
#: complete, and features of the last moments of a sound are not yet those that they will have.
_MARGIN_MS = 100

#: Makes the chat of items, in the conversation that they are of.
BuildRequest = Callable[[SessionConfig, list[ConversationItem]], ChatRequest]


class SpeechEncoding:
    """Reads the speech of one session as it grows, at most once at a time."""

    def __init__(self, chat: Chat, conversation: Conversation, build_request: BuildRequest) -> None:
        self._encoder, self._prefill = AheadEncoder(chat), AheadPrefill(chat)
        self._conversation = conversation
        self._build_request = build_request
        self._task: asyncio.Task[None] | None = None
        self._begin_ms, self._windows = -1, 0  # of what was sent last

    def follow(self, config: SessionConfig, input: InputTurns) -> None:
        """Have what is held of ``input`` read if another window of it is complete."""
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
        """End what is under way: its turn is complete, or is no turn."""
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
        except OmnibusError:  # the answer does it, or fails in the same way
            return
        GATEWAY.realtime_early.labels(config.model, outcome).inc()

    async def _prefill_prompt(self, config: SessionConfig, item: ConversationItem) -> bool:
        """Have the prompt up to ``item`` computed; returns whether it was."""
        items = [*self._conversation, item]
        if any(part.image_url and not part.image_url.startswith("data:") for each in items for part in each.parts):
            return False  # it would be fetched for each window
        try:
            await self._prefill.prefill(self._build_request(config, items))
        except OmnibusError:
            return False
        return True
