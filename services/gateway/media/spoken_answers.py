"""Spoken answers that clients may refer to in later turns, by ``audio.id``.

What was said is in the store, so that any gateway knows it; the sound itself is a file as others are
(``services.gateway.media.files``), under the same id.
"""

import asyncio
import logging
import time
from collections.abc import Iterator

import msgspec

from omnibus.encoding.audio import MIME, SoundFormat
from omnibus.errors import BadRequest, OmnibusError
from omnibus.store import SpokenAnswer, Store
from services.gateway.media.files import FileStore
from services.gateway.openai.chat_request import AssistantMessage, ChatRequest, Message
from services.gateway.tenancy import tenant as tenants

log = logging.getLogger(__name__)

#: Seconds that an answer waits until it is kept: a store that is gone must not hold up who listens.
STORE_WAIT_SECONDS = 0.5


class SpokenAnswers:
    """Keeps spoken answers for ``seconds``."""

    def __init__(self, store: Store, files: FileStore, seconds: float) -> None:
        self._store = store
        self._files = files
        self.seconds = seconds
        self._keeping: set[asyncio.Task[None]] = set()

    async def store_answer(self, id: str, transcript: str, sound: bytes, format: SoundFormat) -> None:
        """Keep an answer; waits no longer than ``PATIENCE``, and raises nothing."""
        task = asyncio.get_running_loop().create_task(self._write_answer(id, transcript, sound, format))
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)
        await asyncio.wait({task}, timeout=STORE_WAIT_SECONDS)

    async def _write_answer(self, id: str, transcript: str, sound: bytes, format: SoundFormat) -> None:
        try:
            said = SpokenAnswer(transcript, time.time() + self.seconds, tenants.current_tenant().name)
            await self._store.put_spoken_answer(id, said, self.seconds)
            if self._files.is_enabled:
                await self._files.put(sound, MIME[format], id)
        except OmnibusError as error:
            log.warning("%s is not kept: %s", id, error)

    async def resolve_references(self, request: ChatRequest) -> ChatRequest:
        """``request`` with what was said in the place of ids of earlier answers.

        Raises ``BadRequest`` that names an id which is unknown or was forgotten, and ``StoreUnavailable``.
        """
        wanted = dict(answer_references(request))
        if not wanted:
            return request
        found = await self._store.spoken_answers(list(dict.fromkeys(wanted.values())))
        messages: list[Message] = list(request.messages)
        who = tenants.current_tenant()
        for index, id in wanted.items():
            if id not in found or found[id].expires <= time.time() or not who.owns(found[id].tenant):
                raise unknown_audio_error(index)
            messages[index] = AssistantMessage(content=found[id].transcript)
        return msgspec.structs.replace(request, messages=messages)


def answer_references(request: ChatRequest) -> Iterator[tuple[int, str]]:
    """The messages that say nothing themselves but refer to an earlier answer, and the id of that."""
    for index, message in enumerate(request.messages):
        if not isinstance(message, AssistantMessage) or message.audio is None:
            continue
        if not message.content and message.refusal is None:
            yield index, message.audio.id


def unknown_audio_error(index: int) -> BadRequest:
    """Nobody knows what was said in message ``index``."""
    return BadRequest(
        "Unknown or expired audio id: send the transcript of that answer as content.",
        param=f"messages[{index}].audio.id",
    )
