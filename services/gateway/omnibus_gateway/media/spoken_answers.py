"""Spoken answers that clients may refer to in later turns, by ``audio.id``.

The transcript is in the store, so that every gateway can read it. The audio is a file like others
(``omnibus_gateway.media.files``), under the same id.

Audio of answers as files; slow encoders run in a thread.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from omnibus.encoding import audio
from omnibus.encoding.audio import MIME, SoundFormat, StreamingAudioEncoder
from omnibus.errors import LimitReached, OmnibusError
from omnibus.store import OVERHEAD_BYTES, SpokenAnswer, Store, TenantAccount
from omnibus_gateway.media.files import MadeFiles, UnwrittenFile
from omnibus_gateway.openai.chat_request import AssistantMessage, ChatRequest, Message
from omnibus_gateway.openai.messages import answer_references, unknown_audio_error
from omnibus_gateway.tenancy import tenant as tenants

log = logging.getLogger(__name__)

#: Seconds that an answer waits for its storage: an unavailable store must not delay the listener.
STORE_WAIT_SECONDS = 0.5
#: Seconds from a write of several answers to the next one: answers that arrive meanwhile are written together. There is
#: no wait after a write of one answer, so that a client alone at this gateway has each answer at once.
WRITE_INTERVAL_SECONDS = 0.005


class _Unwritten:
    """An answer to keep, a callback for then, and its deadline.

    The deadline is in the event loop's time.
    """

    __slots__ = ("_then", "file", "said", "until")

    def __init__(
        self, spoken_answer: SpokenAnswer, file: UnwrittenFile, then: Callable[[], None], until: float
    ) -> None:
        self.said = spoken_answer
        self.file = file
        self.until = until
        self._then: Callable[[], None] | None = then

    @property
    def is_released(self) -> bool:
        return self._then is None

    def release(self) -> None:
        """Call the callback, once."""
        then, self._then = self._then, None
        if then is not None:
            then()


class SpokenAnswers:
    """Keeps spoken answers for ``seconds``. One write takes all waiting ones. ``account`` finds a tenant's account."""

    def __init__(
        self,
        store: Store,
        files: MadeFiles,
        seconds: float,
        account: Callable[[str], TenantAccount] = TenantAccount,
    ) -> None:
        self._account = account
        self._store = store
        self._files = files
        self.seconds = seconds
        self._waiting: list[_Unwritten] = []
        self._unreleased: deque[_Unwritten] = deque()  # oldest first
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def store_answer(self, id: str, transcript: str, sound: bytes, format: SoundFormat) -> None:
        """Keep an answer; waits no longer than ``STORE_WAIT_SECONDS``, and raises nothing."""
        future = asyncio.get_running_loop().create_future()

        def set_written() -> None:
            if not future.done():
                future.set_result(None)

        self.keep_answer(id, transcript, sound, format, set_written)
        await future

    def keep_answer(
        self, id: str, transcript: str, sound: bytes, format: SoundFormat, then: Callable[[], None]
    ) -> None:
        """Keep an answer, then call ``then``, after at most ``STORE_WAIT_SECONDS``; ``then`` must not raise."""
        loop, tenant = asyncio.get_running_loop(), tenants.current_tenant().name
        spoken_answer = SpokenAnswer(transcript, time.time() + self.seconds, tenant)
        file = UnwrittenFile(id, MIME[format], sound, tenant)
        answer = _Unwritten(spoken_answer, file, then, loop.time() + STORE_WAIT_SECONDS)
        self._waiting.append(answer)
        self._unreleased.append(answer)
        if self._writing is None:
            self._writing = loop.create_task(self._write_waiting())
        if self._timer is None:
            self._timer = loop.call_at(answer.until, self._release_overdue)

    def _release_overdue(self) -> None:
        """Release answers whose storage took too long."""
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._unreleased and (self._unreleased[0].is_released or self._unreleased[0].until <= loop.time()):
            self._unreleased.popleft().release()
        if self._unreleased:
            self._timer = loop.call_at(self._unreleased[0].until, self._release_overdue)

    async def _write_waiting(self) -> None:
        """Write until no answer has arrived for a whole interval."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                next_write = loop.time() + WRITE_INTERVAL_SECONDS
                answers, self._waiting = self._waiting, []
                await self._write_answers(answers)
                for answer in answers:
                    answer.release()
                while self._unreleased and self._unreleased[0].is_released:
                    self._unreleased.popleft()
                if len(answers) > 1:
                    await asyncio.sleep(next_write - loop.time())
        finally:
            self._writing = None

    async def _write_answers(self, answers: Sequence[_Unwritten]) -> None:
        """Write files and transcripts at the same time; one that fails does not stop the other."""
        sounds = [each.file for each in answers if each.file.data]  # an answer may have no audio
        files = self._files.put_named(sounds) if sounds and self._files.is_enabled else None
        try:
            spoken_answers = await self._reserve_bytes({each.file.id: each.said for each in answers})
            if spoken_answers:
                await self._store.put_spoken_answers(spoken_answers, self.seconds)
        except OmnibusError as error:
            log.warning("%s not kept: %s", ", ".join(each.file.id for each in answers), error)
        if files is not None:
            for id, failure in (await files).items():
                log.warning("the audio of %s is not kept: %s", id, failure)

    async def _reserve_bytes(self, answers: dict[str, SpokenAnswer]) -> dict[str, SpokenAnswer]:
        """Return the answers that fit their tenants' limits. Without keys nothing is counted."""
        tenant_answers = {id: each for id, each in answers.items() if each.tenant}
        results = await asyncio.gather(*(self._reserve_answer(id, each) for id, each in tenant_answers.items()))
        full = {id for id, fits in zip(tenant_answers, results, strict=True) if not fits}
        return {id: each for id, each in answers.items() if id not in full}

    async def _reserve_answer(self, id: str, spoken_answer: SpokenAnswer) -> bool:
        nbytes = len(spoken_answer.transcript.encode()) + OVERHEAD_BYTES
        try:
            await self._store.reserve(self._account(spoken_answer.tenant), f"audio:{id}", nbytes, self.seconds)
        except LimitReached as error:
            log.warning("the transcript of %s is not kept: %s", id, error)
            return False
        return True

    async def resolve_references(self, request: ChatRequest) -> ChatRequest:
        """Return ``request`` with ids of earlier answers replaced by their transcripts.

        Raises ``BadRequest`` that names an unknown or expired id, and ``StoreUnavailable``.
        """
        references = dict(answer_references(request))
        if not references:
            return request
        answers = await self._store.spoken_answers(list(dict.fromkeys(references.values())))
        messages: list[Message] = list(request.messages)
        client_tenant = tenants.current_tenant()
        for index, id in references.items():
            if id not in answers or answers[id].expires <= time.time() or not client_tenant.owns(answers[id].tenant):
                raise unknown_audio_error(index)
            messages[index] = AssistantMessage(content=answers[id].transcript)
        return msgspec.structs.replace(request, messages=messages)


#: Formats that take negligible time.
UNCOMPRESSED_FORMATS = ("wav", "pcm16")


async def encode_audio_file(samples: NDArray[np.float32], rate: int, format: SoundFormat) -> bytes:
    """Return a whole file of mono samples [n]."""
    if format in UNCOMPRESSED_FORMATS:
        return audio.encode_audio(samples, rate, format)
    return await asyncio.to_thread(audio.encode_audio, samples, rate, format)


class AudioFileStream:
    """A file that is sent while its samples arrive. It starts with the first samples, which determine the rate."""

    def __init__(self, format: SoundFormat, speed: float = 1.0) -> None:
        self._format = format
        self._speed = speed
        self._quick = format in UNCOMPRESSED_FORMATS and speed == 1.0
        self._encoder: StreamingAudioEncoder | None = None

    async def push(self, samples: NDArray[np.float32], rate: int) -> bytes:
        """Take mono samples [n]; returns the bytes of the file that are ready, possibly none."""
        if self._quick:
            return self.push_now(samples, rate)
        return await asyncio.to_thread(self.push_now, samples, rate)

    def push_now(self, samples: NDArray[np.float32], rate: int) -> bytes:
        """Push samples on the event loop, for uncompressed formats."""
        return self._get_encoder(rate).push(samples)

    async def close(self, rate: int) -> bytes:
        """Return the rest of the file; ``rate`` is used only if no sample arrived."""
        if self._quick:
            return self.close_now(rate)
        return await asyncio.to_thread(lambda: self._get_encoder(rate).close())

    def close_now(self, rate: int) -> bytes:
        """Close on the event loop, for uncompressed formats."""
        return self._get_encoder(rate).close()

    def _get_encoder(self, rate: int) -> StreamingAudioEncoder:
        if self._encoder is None:
            self._encoder = StreamingAudioEncoder(self._format, rate, self._speed)
        return self._encoder
