"""The engine of a vocoder: codec codes in, waveform out, piece by piece."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from omnibus.errors import BadRequest
from omnibus.executor.job_clock import current_clock
from omnibus.executor.runner import Item, Job
from omnibus.tensors.item import RESUMED_AT
from omnibus_engines.component import ComponentSource, Hosted
from omnibus_generator.playback_scheduler import DeadlineLock, Playback
from omnibus_generator.vocoder_chunks import piece_sizes
from omnibus_models.contract import Code, Vocoder, Vocoding
from omnibus_models.device_copy import copy_to_host


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
