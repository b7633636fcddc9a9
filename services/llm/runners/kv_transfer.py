"""Handover from prefill to decode: the cache and the data that goes with it, for any engine."""

import time
from typing import Any

import msgspec
import numpy as np

from omnibus.errors import ArenaFull, ProtocolError
from omnibus.executor.runner import Item, Job

#: Seconds that a cache waits for memory of the arena: decode takes caches as fast as answers end.
ARENA_WAIT_SECONDS = 30.0
#: The layout of ``services.llm.engine.kv_codec``: [layers, 2, kv_heads, T, head_dim].
TRANSFORMERS = "transformers"


class DecodeStart(msgspec.Struct, frozen=True):
    """Data of a prefill that decode needs, beside the cache.

    ``seed`` is that of the first token's choice, ``finish`` why there is nothing to decode. ``here`` is the number
    of a sequence that waits in its slot; then there is no cache to be read. ``resumed`` counts tokens of an earlier
    attempt that come before ``first_token`` and are in the cache. ``layout`` says how the cache is
    arranged: only an engine that arranges its own in the same way reads it. With a repetition penalty the
    prompt's ids come along as an array.
    """

    length: int
    rope_delta: int
    first_token: int
    seed: int
    prompt_tokens: int
    image_tokens: int = 0
    audio_tokens: int = 0
    video_tokens: int = 0
    finish: str | None = None
    here: int | None = None
    resumed: int = 0
    layout: str = TRANSFORMERS

    @property
    def counts(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "image_tokens": self.image_tokens,
            "audio_tokens": self.audio_tokens,
            "video_tokens": self.video_tokens,
        }


async def put_start(job: Job, start: DecodeStart, ids: Any, penalty: float) -> None:
    """Send ``start``, and of the prompt's ``ids`` what a repetition ``penalty`` goes by."""
    seen = np.unique(np.array(ids, np.int32)) if penalty != 1.0 else None
    await job.put("start", msgspec.to_builtins(start), seen)


def read_start(value: Any, layout: str) -> tuple[DecodeStart, np.ndarray | None]:
    """Read what ``put_start`` has sent, for an engine whose caches have this ``layout``. Raises ``ProtocolError``."""
    about, seen = value if isinstance(value, Item) else (value, None)
    try:
        start = msgspec.convert(about, DecodeStart)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"start is not what a prefill says: {error}") from None
    if start.layout != layout:
        raise ProtocolError(
            f"the cache of prefill is arranged as {start.layout!r}, and decode reads {layout!r}: "
            "declare the same engine, device and dtype for both"
        )
    return start, seen


async def put_cache(job: Job, about: dict[str, Any], packed: np.ndarray | None) -> None:
    """Send the cache; a full arena is waited for. As many caches wait as the executor takes invocations."""
    end = min(time.time() + ARENA_WAIT_SECONDS, job.deadline)
    while True:
        try:
            return await job.put("cache", about, packed)
        except ArenaFull:
            if time.time() >= end:
                raise
