"""The engine of a vocoder: codec codes in, waveform out, piece by piece.

Sizes of the pieces in which a vocoder takes codes. They depend on the place in the waveform only.

A vocoder computes each piece with some codes around it, so samples differ in their last bits where pieces are cut. If
codes were taken as they arrive, the same codes would make slightly different audio each time. The first pieces are
small, so that audio starts early. Later pieces are large and cost less per code; by then the listener has enough audio
in hand.

Scheduling of audio: the listener who would run out first is served first. There is no clock here.

Audio is generated faster than it is played. A listener with a few seconds in hand can wait for a listener with none.
The order is earliest deadline first: while every listener can be kept from silence, no listener hears any.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from omnibus.errors import BadRequest
from omnibus.executor.due_queue import Due, DueQueue
from omnibus.executor.job_clock import current_clock
from omnibus.executor.runner import Item, Job
from omnibus.executor.tenant_order import NO_TENANT, TenantOrder, TenantShare
from omnibus.tensors.handle import RESUMED_AT
from omnibus_engines.component import ComponentSource, Hosted
from omnibus_models.contract import Code, Vocoder, Vocoding
from omnibus_models.device import copy_to_host

#: Audio in the first pieces. Talkers send their codes in such batches, which are multiples of ``_BATCH_CODES``.
_FIRST_CHUNK_SECONDS = 0.24
_BATCH_CODES = 4
#: Pieces of one size before it doubles. The audio of earlier pieces then lasts until the next one is ready, if codes
#: arrive 1.4 times as fast as they are played.
_CHUNKS_PER_SIZE = 6


def piece_sizes(codes_per_second: float, most: int) -> Iterator[int]:
    """Yield the sizes of all pieces of a waveform, in codes or frames.

    The iterator is infinite; ``most`` is the largest size.
    """
    size = _BATCH_CODES * max(1, round(codes_per_second * _FIRST_CHUNK_SECONDS / _BATCH_CODES))
    while size < most:
        yield from [size] * _CHUNKS_PER_SIZE
        size *= 2
    while True:
        yield most


class Playback:
    """Playback state of one listener, as far as the sender knows.

    Times are in seconds, of any single clock. A listener plays from the first sample, pauses when the audio runs out,
    and resumes when more arrives. ``dry`` is when the audio runs out. Before the first sample (``plays`` is False) it
    is ``patience`` seconds after ``begin_time``.
    """

    def __init__(self, rate: int, begin_time: float, patience: float) -> None:
        self.dry = begin_time + patience
        self._rate = rate
        self.plays = False

    def record_sent(self, samples: int, now: float) -> None:
        """Record that ``samples`` were sent to the listener at ``now``."""
        if samples:
            self.dry = (max(self.dry, now) if self.plays else now) + samples / self._rate
            self.plays = True


class DeadlineLock:
    """A lock that grants turns by tenant, due time and arrival.

    The next turn is for the tenant that has had the least. Of its listeners, the one due first is next.
    """

    def __init__(self) -> None:
        self._taken = False
        self._numbers = count()
        self._order = TenantOrder()
        self._waiting: DueQueue[asyncio.Future[None]] = DueQueue(self._order)

    @asynccontextmanager
    async def hold_turn(self, due: float, tenant: TenantShare = NO_TENANT, size: int = 1) -> AsyncIterator[None]:
        """Wait for the turn and keep it until the block ends; ``size`` of the work is charged to ``tenant``."""
        await self._acquire_turn(due, tenant, size)
        try:
            yield
        finally:
            self._release_turn()

    async def _acquire_turn(self, due: float, tenant: TenantShare, size: int) -> None:
        if not self._taken:
            self._taken = True
            self._order.charge(tenant, size)
            return
        grant: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.push(Due(due, next(self._numbers), grant, size, tenant=tenant))
        try:
            await grant
        except asyncio.CancelledError:
            if not grant.cancelled():
                self._release_turn()  # granted too late: pass the turn on
            raise

    def _release_turn(self) -> None:
        while (due := self._waiting.pop()) is not None:
            if not due.key.done():
                self._order.charge(due.tenant, due.size)
                due.key.set_result(None)
                return
        self._taken = False


@dataclass(frozen=True)
class VocodeSettings:
    """Limits of one vocoder.

    ``codes`` is the most codes (or frames) of one waveform before another waveform has its turn. ``patience`` is the
    seconds that a new listener may wait for the first audio while listeners about to run out are served. ``threads``
    are torch's in the compute thread.
    """

    codes: int = 48
    patience: float = 0.2
    threads: int = 1


class VocodeParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a request. ``seed`` of the noise; None means the invocation's."""

    seed: Annotated[int, msgspec.Meta(ge=0)] | None = None


class VocodeRunner(Hosted[Vocoder]):
    """A ``Runner`` for vocoders.

    Inputs: ``codes`` (stream of ``{"codes": [int]}``, or of lists for frames), ``voice``, ``params``. Output:
    ``audio``, streamed, ``{"rate"}`` with float32 [n] in [-1, 1]. Waveforms take turns: the listener who would run out
    of audio first is served first.
    """

    def __init__(
        self, component: str, family: str, checkpoint: Path, device: str, dtype: str, settings: VocodeSettings
    ) -> None:
        super().__init__(ComponentSource(component, family, checkpoint, device, dtype), settings.threads)
        self._settings = settings
        self._floor = DeadlineLock()
        self._open = 0
        self._samples = 0

    async def run(self, job: Job) -> None:
        self._open += 1
        try:
            total, cut = await self._vocode_stream(job)
        finally:
            self._open -= 1
        # A complete waveform has no finish reason.
        job.close("audio", {"samples": total, **({"finish_reason": "length"} if cut else {})})

    def stats(self) -> dict[str, Any]:
        counts = {"parameters": self.model.parameters, "used": self._open, "samples": self._samples}
        return {**counts, **self.memory_stats()}

    async def _vocode_stream(self, job: Job) -> tuple[int, bool]:
        """Return the number of samples, and whether a limit cut them."""
        sizes = piece_sizes(self.model.rate / self.model.samples_per_code, self._settings.codes)
        arrivals = CodePieces(job.stream("codes"), self.model.groups, sizes)
        filling = asyncio.create_task(arrivals.read_stream())
        try:
            return await self._send_audio(job, arrivals), arrivals.cut
        finally:
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)

    async def _send_audio(self, job: Job, arrivals: "CodePieces") -> int:
        voice, seed = str(job.inputs.get("voice") or ""), _read_seed(job)
        loop, tenant = asyncio.get_running_loop(), current_clock().tenant
        await arrivals.wait_first()
        playback = Playback(self.model.rate, loop.time(), self._settings.patience)
        vocoding: Vocoding | None = None
        total, last = 0, False
        sent_samples = job.resume_state("audio").get("rows", 0)
        while not last:
            await arrivals.wait_piece()
            async with self._floor.hold_turn(playback.dry, tenant, arrivals.next_size):
                codes, last = arrivals.take_piece()
                if vocoding is None and codes:
                    vocoding = await self._compute(self.model.open, voice, seed)
                    if sent_samples:
                        total = await self._skip_sent(job, vocoding, sent_samples)
                if vocoding is None:
                    continue  # an empty stream
                samples = await self._compute(_vocode_samples, vocoding, codes, last)
            playback.record_sent(samples.size, loop.time())
            total += samples.size
            self._samples += samples.size
            if samples.size:
                await job.send("audio", {"rate": self.model.rate}, samples)
        return total

    async def _skip_sent(self, job: Job, vocoding: Vocoding, sent_samples: int) -> int:
        """Skip the ``sent_samples`` samples that the client received from an earlier attempt."""
        begin = vocoding.skip(sent_samples)
        await job.send("audio", {"rate": self.model.rate, RESUMED_AT: begin}, np.empty(0, np.float32))
        return begin


class CodePieces:
    """Codes, or frames of ``groups`` codes, of one stream, in pieces of ``sizes``.

    The cuts do not depend on when the codes arrive.
    """

    def __init__(self, stream: AsyncIterator[Item], groups: int, sizes: Iterator[int]) -> None:
        self._stream = stream
        self._groups = groups
        self._sizes = sizes
        self._size = next(sizes)
        self._codes: list[Code] = []
        self._ended = False
        self.cut = False  # True if the talker stopped at a limit
        self._error: Exception | None = None
        self._news = asyncio.Event()

    @property
    def next_size(self) -> int:
        """Most codes, or frames, of the next piece."""
        return self._size

    async def read_stream(self) -> None:
        """Read the stream to its end."""
        try:
            async for item in self._stream:
                self._codes += _read_codes(item, self._groups)
                self.cut = item.data.get("finish_reason") == "length"
                self._news.set()
        except Exception as error:  # noqa: BLE001 - a task boundary: raised again in ``wait_piece``
            self._error = error
        self._ended = True
        self._news.set()

    async def wait_first(self) -> None:
        """Wait for a code, or for the end. Raises the error of the stream."""
        await self._wait_codes(1)

    async def wait_piece(self) -> None:
        """Wait for the next piece, or for the end. Raises the error of the stream."""
        await self._wait_codes(self._size)

    async def _wait_codes(self, count: int) -> None:
        while len(self._codes) < count and not self._ended:
            self._news.clear()
            await self._news.wait()
        if self._error is not None:
            raise self._error

    def take_piece(self) -> tuple[list[Code], bool]:
        """Return the next piece, and True if it is the last.

        The last piece is always shorter than its size, so that an end that arrives late changes nothing.
        """
        size, last = self._size, len(self._codes) < self._size
        piece, self._codes = self._codes[:size], self._codes[size:]
        self._size = next(self._sizes)
        return piece, last


def _vocode_samples(vocoding: Vocoding, codes: Sequence[Code], last: bool) -> np.ndarray:
    return copy_to_host(vocoding.push(codes, last))


def _read_codes(item: Item, groups: int) -> list[Code]:
    codes = item.data.get("codes", [])  # the talker's last item has none
    frames = codes if groups > 1 else [codes]
    if not isinstance(codes, list) or not all(_is_int_list(frame) for frame in frames):
        raise BadRequest("a chunk of codes must be a list of whole numbers", param="codes")
    if groups > 1 and any(len(frame) != groups for frame in frames):
        raise BadRequest(f"every frame of this codec must have {groups} codes", param="codes")
    return codes


def _is_int_list(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int for each in value)


def _read_seed(job: Job) -> int:
    try:
        params = msgspec.convert(job.inputs.get("params") or {}, VocodeParams)
    except msgspec.ValidationError as error:
        raise BadRequest(f"params are invalid: {error}", param="params") from None
    return job.seed if params.seed is None else params.seed
