"""Engines that compute nothing, so benchmarks measure everything else.

    OMNIBUS_EXECUTOR_ENGINE=tests.bench.null:engine

They read and write the same data as real engines, through the same ``Job``: the prompt, the media by handle,
embeddings, the talker's prompt, codes. Each engine checks that its inputs belong to its request, and raises otherwise.
That fails the request and therefore the benchmark. A tensor is written once, as a model would write it. Its reader
checks three numbers of it: the first, the middle and the last.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from omnibus.errors import BadRequest
from omnibus.executor.runner import Job
from omnibus.executor.settings import ExecutorSettings
from tests.bench import bodies

WIDTH = 1024  # numbers per row of a tensor
_PIECE_CODES = 25  # of a piece of speech: half a second
#: Seconds between two tokens of text, by default none.
TOKEN_SECONDS = "OMNIBUS_BENCH_TOKEN_SECONDS"
_TOKEN_SECONDS = float(os.environ.get(TOKEN_SECONDS, "0"))

_templates: dict[int, np.ndarray] = {}


class NullRunner:
    """The ``Runner`` of one component."""

    def __init__(self, work: Callable[[Job], Awaitable[None]]) -> None:
        self._work = work
        self._jobs = 0

    async def load(self) -> None: ...

    async def run(self, job: Job) -> None:
        self._jobs += 1
        await self._work(job)

    async def close(self) -> None: ...

    def stats(self) -> dict[str, Any]:
        return {"parameters": 0, "jobs": self._jobs}


def engine(component: str, settings: ExecutorSettings) -> NullRunner:
    """Raises ``BadRequest`` for a component that has no null engine."""
    if component not in _WORK:
        raise BadRequest(f"no null engine for component {component!r}; there is one for {sorted(_WORK)}")
    return NullRunner(_WORK[component])


async def _run_encoder(job: Job) -> None:
    media = await job.value("media")
    size = bodies.tensor_bytes(media.array[:256].tobytes())
    await job.put("embedding", {"modality": "image"}, _make_tensor(size, job.seed))


async def _run_thinker(job: Job) -> None:
    await job.value("messages")
    size = 0
    for item in await job.value("items"):
        size = _check_tensor(item.array, job.seed)
    await job.put("prompt", {}, _make_tensor(size, job.seed + 1))
    await job.put("layout", {})
    tokens = bodies.make_answer(job.seed, job.inputs["params"]["max_tokens"])
    for token in tokens:
        await job.send_text("text", {"text": token})
        await asyncio.sleep(_TOKEN_SECONDS)
    job.close("rows")
    job.close("text", {"finish_reason": "stop", "usage": {"prompt_tokens": 8, "completion_tokens": len(tokens)}})


async def _run_talker(job: Job) -> None:
    prompt = await job.value("prompt")
    _check_tensor(prompt.array, job.seed + 1)
    await job.value("layout")
    async for _ in job.stream("rows"):
        pass
    limit = job.inputs["params"].get("max_codes")  # none: the default of the talker
    job.close("codes", {"codes": [job.seed] * (limit if limit == bodies.SPEECH_CODES else 1)})


async def _run_vocoder(job: Job) -> None:
    codes = [code async for item in job.stream("codes") for code in item.data["codes"]]
    if {*codes} != {job.seed}:
        raise ValueError(f"codes {codes} reached request {job.seed}")
    has_speech = len(codes) > 1
    for begin in range(0, len(codes) if has_speech else 0, _PIECE_CODES):
        samples = len(codes[begin : begin + _PIECE_CODES]) * bodies.CODE_SAMPLES
        await job.send(
            "audio", {"rate": bodies.RATE}, np.full(samples, bodies.compute_level(job.seed) / 32767, np.float32)
        )
    job.close("audio", {"samples": len(codes) * bodies.CODE_SAMPLES if has_speech else 0})


_WORK: dict[str, Callable[[Job], Awaitable[None]]] = {
    "vision": _run_encoder,
    "thinker": _run_thinker,
    "talker": _run_talker,
    "vocoder": _run_vocoder,
}


def _make_tensor(nbytes: int, number: int) -> np.ndarray | None:
    """A float32 tensor of ``nbytes`` with ``number`` in three places.

    The memory is always the same. Only one request at a time may have tensors. A second one would overwrite the numbers
    and be detected.
    """
    if not nbytes:
        return None
    if nbytes not in _templates:
        _templates[nbytes] = np.arange(nbytes // 4, dtype=np.float32).reshape(-1, WIDTH)
    array = _templates[nbytes]
    array.reshape(-1)[_find_places(array)] = number
    return array


def _check_tensor(array: np.ndarray | None, number: int) -> int:
    """The size of ``array`` in bytes. Raises ``ValueError`` unless it carries ``number``."""
    if array is None:
        return 0
    numbers = array.reshape(-1)[_find_places(array)].tolist()
    if numbers != [number] * 3:
        raise ValueError(f"a tensor with {numbers} reached request {number}")
    return array.nbytes


def _find_places(array: np.ndarray) -> list[int]:
    return [0, array.size // 2, array.size - 1]
