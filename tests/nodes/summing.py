"""Engines that compute only a checksum of their inputs, for the answer.

    OMNIBUS_EXECUTOR_ENGINE=tests.nodes.summing:engine

Every received byte counts. A request encodes the size of its tensors in its image, and its number in its seed. The
encoder sends a unique tensor to the language model, which sends another one to the talker. The text of the answer
contains the checksum of the first tensor, and the level of the audio that of the second. An answer with another
request's bytes is therefore wrong.
"""

import asyncio
import base64
import zlib
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np

from omnibus.errors import BadRequest
from omnibus.executor.runner import Job
from omnibus.executor.settings import ExecutorSettings
from tests.bench import bodies
from tests.bench.null import NullRunner
from tests.bench.system import MODELS
from tests.nodes.soak import SoakCase

#: Bytes of tensors: within a message, by the connection for small ones, and by those for large ones.
_SIZES = (4 << 10, 20 << 10, 100 << 10, 600 << 10)
_WEIGHTS = (4, 3, 2, 1)
_CODES = 25  # of half a second of audio, which the gateway pulls
#: A large prime number: tensors of two requests differ in each of their numbers.
_STEP = 2_654_435_761


def engine(component: str, settings: ExecutorSettings) -> NullRunner:
    """Create the engine. Raises ``BadRequest`` for an unknown component."""
    if component not in _WORK:
        raise BadRequest(f"no summing engine for component {component!r}; there is one for {sorted(_WORK)}")
    return NullRunner(_WORK[component])


def declared_model(replicas: int) -> dict[str, Any]:
    """Every component in ``replicas`` executors."""
    model = dict(MODELS[bodies.IMAGE_MODEL])
    model["options"] = {name: {**option, "replicas": replicas} for name, option in dict(model["options"]).items()}
    return model


class SummedRequests:
    """Requests by their number, spoken or not, with tensors of different sizes; the same ones for one ``seed``."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._templates = {
            (size, has_speech): bodies.image_chat(bodies.picture(size), distinct=True, spoken=has_speech)
            for size in _SIZES
            for has_speech in (False, True)
        }

    def __call__(self, number: int) -> SoakCase:
        dice = Random(f"{self._seed}/{number}")
        (size,), has_speech = dice.choices(_SIZES, _WEIGHTS), dice.random() < 0.5
        seed = bodies.FIRST + number
        return SoakCase(
            bodies.fill_template(self._templates[size, has_speech], seed),
            {},
            partial(_check_answer, seed, size, has_speech),
        )


def _check_answer(seed: int, size: int, spoken: bool, body: Any) -> None:
    message = body["choices"][0]["message"]
    assert message["content"] == _make_text(seed, _make_tensor(size, seed)), message["content"]
    if spoken:
        samples = np.frombuffer(base64.b64decode(message["audio"]["data"]), np.int16)
        assert len(samples) == _CODES * bodies.CODE_SAMPLES, len(samples)
        assert set(samples.tolist()) == {bodies.compute_level(_compute_sum(_make_tensor(size, seed + 1)))}


async def _run_encoder(job: Job) -> None:
    media = await job.value("media")
    await job.put(
        "embedding", {"modality": "image"}, _make_tensor(bodies.tensor_bytes(media.array.tobytes()), job.seed)
    )


async def _run_thinker(job: Job) -> None:
    await job.value("messages")
    [item] = await job.value("items")
    await job.put("prompt", {}, _make_tensor(item.array.nbytes, job.seed + 1))
    await job.put("layout", {})
    await job.send_text("text", {"text": _make_text(job.seed, item.array)})
    job.close("rows")
    job.close("text", {"finish_reason": "stop", "usage": {"prompt_tokens": 8, "completion_tokens": 1}})


async def _run_talker(job: Job) -> None:
    prompt = await job.value("prompt")
    level = bodies.compute_level(_compute_sum(prompt.array))
    await job.value("layout")
    async for _ in job.stream("rows"):
        pass
    job.close("codes", {"codes": [level] * _CODES})


async def _run_vocoder(job: Job) -> None:
    codes = [code async for item in job.stream("codes") for code in item.data["codes"]]
    samples = np.repeat(np.array(codes, np.float32) / 32767, bodies.CODE_SAMPLES)
    await job.send("audio", {"rate": bodies.RATE}, samples)
    await asyncio.sleep(0)  # sent chunks must precede the end
    job.close("audio", {"samples": len(samples)})


_WORK: dict[str, Callable[[Job], Awaitable[None]]] = {
    "vision": _run_encoder,
    "thinker": _run_thinker,
    "talker": _run_talker,
    "vocoder": _run_vocoder,
}


def _make_tensor(nbytes: int, number: int) -> np.ndarray:
    words = np.arange(number, number + nbytes // 4, dtype=np.uint32) * np.uint32(_STEP)
    return words.view(np.int32).reshape(-1, 1024)


def _compute_sum(array: np.ndarray) -> int:
    return zlib.crc32(array.tobytes())


def _make_text(seed: int, array: np.ndarray) -> str:
    return f"{seed} {array.nbytes} {_compute_sum(array):08x}"
