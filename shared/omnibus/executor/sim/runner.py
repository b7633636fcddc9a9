"""Simulated components: inputs and outputs are real, computation is time."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar
from zlib import crc32

import msgspec
import numpy as np

from omnibus.bus.messages import BatchCounts
from omnibus.errors import BadMedia, BadRequest
from omnibus.executor.runner import Item, Job
from omnibus.executor.settings import ExecutorSettings
from omnibus.executor.sim.async_device import SimulatedMachine
from omnibus.executor.sim.device import Lane, SimSequence, SimWork
from omnibus.executor.sim.distributions import Draw
from omnibus.executor.sim.profile import ANY, SimComponent

P = TypeVar("P")


class Place(NamedTuple):
    """Placement of a simulated component. ``context`` is its longest sequence in tokens; 0 means no limit.

    ``make_other`` makes the runner of another component in its executor's place.
    """

    machine: SimulatedMachine
    lane: Lane
    seed: int
    jitter: float
    context: int = 0
    make_other: Callable[[str, ExecutorSettings], "SimulatedRunner"] | None = None


class SimulatedRunner(ABC):
    """A ``Runner`` that computes on a lane of the executor's device."""

    #: Curves that the kind requires.
    needs: ClassVar[tuple[str, ...]] = ("batch",)
    #: Whether a work of this kind takes steps after its pass.
    steps: ClassVar[bool] = False
    #: Whether this kind supports a profile's scripted answers.
    scripted: ClassVar[bool] = False
    #: Tokens, codes or steps in a message, unless the profile sets it.
    chunk: ClassVar[int] = 1

    def __init__(self, name: str, part: SimComponent, place: Place) -> None:
        self.name = name
        self.part = part
        self.lane = place.lane
        self._machine = place.machine
        self._place = place
        self._chunk = part.chunk or self.chunk

    @property
    def busy(self) -> float:
        """Seconds that the device computed for this component."""
        return self.lane.busy

    @property
    def batch_counts(self) -> BatchCounts:
        """Passes and steps of the device for this component."""
        return self.lane.batch_counts

    def switch_role(self, component: str, settings: ExecutorSettings) -> "SimulatedRunner":
        """See ``Runner``; simulated weights need not be loaded."""
        if self._place.make_other is None:
            raise BadRequest(f"{self.name} was made by hand and has no profile of {component}")
        return self._place.make_other(component, settings)

    async def load(self) -> None:
        await self._machine.start()

    @abstractmethod
    async def run(self, job: Job) -> None:
        """See ``Runner``."""

    async def close(self) -> None:
        await self._machine.close()

    def stats(self) -> dict[str, Any]:
        lane = self.lane
        return {
            "parameters": 0,
            "slots": lane.slots,
            "used": lane.used,
            "waiting": len(lane.waiting),
            "tokens": lane.tokens,
            "batches": _batch_counts(lane.passes),
            "steps": _batch_counts(lane.steps),
            "seconds": round(lane.busy, 6),
            "utilisation": round(self._machine.utilisation, 4),
        }

    def make_draw(self, job: Job, content: object) -> Draw:
        """Return the random numbers of one job. They do not depend on its id, so that a replay returns the same
        answer."""
        return Draw(self._place.seed, self.name, job.seed, content)

    def jitter_factor(self, draw: Draw) -> float:
        return draw.jitter_factor(self._place.jitter)

    async def serve_pass(self, tokens: int, draw: Draw) -> None:
        """Wait for one pass."""
        with self._machine.admit_work(self.lane, SimWork(tokens, self.jitter_factor(draw))) as ticket:
            await ticket.wait_for_update()


class SimulatedEncoder(SimulatedRunner):
    """Reads ``media``, makes ``embedding`` [tokens, width]."""

    async def run(self, job: Job) -> None:
        media = await job.value("media")
        if not isinstance(media, Item) or media.array is None:
            raise BadMedia("the media came without its bytes; upload it again", param="media")
        modality = str(media.data.get("modality", ""))
        size = self.part.tokens_of(modality)
        if size is None:
            known = ", ".join(sorted(self.part.tokens)) or "nothing"
            raise BadRequest(f"this encoder reads {known}, not {modality}", param="media")
        draw = self.make_draw(job, media.data.get("sha256") or crc32(np.ascontiguousarray(media.array).data))
        tokens = size.draw_size(draw, media.array.nbytes / 1024)
        await self.serve_pass(tokens, draw)
        meta = {"modality": modality, "n_tokens": tokens}
        await job.put("embedding", meta, blank_array((tokens, self.part.width), self.part.dtype))


class SimulatedVocoder(SimulatedRunner):
    """Reads ``codes`` as they arrive, makes ``audio``: silence of the right length, chunk by chunk."""

    async def run(self, job: Job) -> None:
        part, total = self.part, 0
        draw = self.make_draw(job, "")
        async for item in job.stream("codes"):
            codes = item.data.get("codes", [])  # the talker's last message has none
            if not isinstance(codes, list):
                raise BadRequest("a chunk of codes must be a list", param="codes")
            if codes:
                await self.serve_pass(len(codes), draw)
                total += len(codes) * part.samples
                await self._send_silence(job, len(codes) * part.samples)
        job.close("audio", {"samples": total})

    async def _send_silence(self, job: Job, samples: int) -> None:
        if samples:
            await job.send("audio", {"rate": self.part.rate}, blank_array((samples,), "float32"))


class SimulatedAnyComponent(SimulatedRunner):
    """Reads the profile's inputs, takes its time, makes the profile's outputs."""

    needs = ()

    async def run(self, job: Job) -> None:
        seen = [await job.value(name) for name in self.part.inputs]
        for name in self.part.streams:
            seen += [item async for item in job.stream(name)]
        draw = self.make_draw(job, job.inputs)
        size = self.part.tokens_of(ANY)
        tokens = size.draw_size(draw, _count_bytes(seen) / 1024) if size is not None else 0
        if self.part.step is None:
            await self.serve_pass(tokens, draw)
            await self._send_stream_outputs(job, 1, 1)
        else:
            await self._run_steps(
                job, SimSequence(tokens, self.jitter_factor(draw), limit=self.part.steps_size.draw_size(draw))
            )
        for name, output in self.part.outputs.items():
            if not output.stream:
                array = None if output.shape is None else blank_array(output.shape, output.dtype)
                await job.put(name, output.data, array)

    async def _run_steps(self, job: Job, sequence: SimSequence) -> None:
        sequence.mark = sequence.every = self._chunk
        with self._machine.admit_work(self.lane, sequence) as ticket:
            while not sequence.is_finished:
                await ticket.wait_for_update()
                await self._send_stream_outputs(job, sequence.done, int(sequence.limit))

    async def _send_stream_outputs(self, job: Job, step: int, steps: int) -> None:
        for name, output in self.part.outputs.items():
            if output.stream:
                array = None if output.shape is None else blank_array(output.shape, output.dtype)
                await job.send(name, {"step": step, "steps": steps, **output.data}, array)


def blank_array(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return read-only zeros that take no memory until they are copied."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def read_params(job: Job, kind: type[P]) -> P:
    """Return the job's ``params``. Raises ``BadRequest``."""
    try:
        return msgspec.convert(job.inputs.get("params") or {}, kind)
    except msgspec.ValidationError as error:
        raise BadRequest(f"params cannot be used: {error}", param="params") from None


def _batch_counts(batches: Mapping[int, int]) -> dict[str, int]:
    return {str(size): count for size, count in sorted(batches.items())}


def _count_bytes(values: Iterable[Any]) -> int:
    found = 0
    for value in values:
        if isinstance(value, Item):
            found += 0 if value.array is None else value.array.nbytes
        elif isinstance(value, list):
            found += _count_bytes(value)
    return found
