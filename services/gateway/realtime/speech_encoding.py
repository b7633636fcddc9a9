"""Audio of a turn that is encoded while its user speaks, so that behind its end only the last windows are left.

Encoders that attend within windows keep those that they have encoded (``services/encoder/known_parts.py``). Each time
that another window is complete, all that was said so far is sent to the encoder alone, which encodes what is new of it.
Nothing is read of that here, and nothing depends on it: the answer encodes what was not kept.
"""

import asyncio

from omnibus.errors import OmnibusError
from omnibus.metrics import GATEWAY
from services.gateway.openai.realtime.session import SessionConfig
from services.gateway.realtime.audio_format import to_wav
from services.gateway.realtime.early_answers import MAX_SECONDS
from services.gateway.realtime.input_turns import InputTurns
from services.gateway.tasks.encode_ahead import AheadEncoder

#: Milliseconds behind a window that are sent with it: the encoder keeps all windows but the last one, which may not be
#: complete, and features of the last moments of a sound are not yet those that they will have.
_MARGIN_MS = 100


class SpeechEncoding:
    """Encodes the speech of one session as it grows, at most once at a time."""

    def __init__(self, encoder: AheadEncoder, conversation: str) -> None:
        self._encoder = encoder
        self._conversation = conversation
        self._task: asyncio.Task[None] | None = None
        self._begin_ms, self._windows = -1, 0  # of what was sent last

    def follow(self, config: SessionConfig, input: InputTurns) -> None:
        """Encode what is held of ``input`` if another window of it is complete."""
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
        encoding = self._encode(config.model, to_wav(audio, config.input_format), window_ms / 1000)
        self._task = asyncio.get_running_loop().create_task(encoding)

    async def drop(self) -> None:
        """End the encoding that is under way: its turn is complete, or is no turn."""
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait({task})

    async def _encode(self, model: str, wav: bytes, new_seconds: float) -> None:
        try:
            await self._encoder.encode(model, wav, new_seconds, self._conversation)
        except OmnibusError:  # the answer does it, or fails in the same way
            return
        GATEWAY.realtime_early.labels(model, "encoded").inc()
