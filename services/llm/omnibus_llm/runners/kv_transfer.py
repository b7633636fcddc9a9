"""Handover from prefill to decode, for any engine: the cache and the data that goes with it."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from omnibus.errors import ArenaFull, ProtocolError
from omnibus.executor.runner import Item, Job
from omnibus_llm.engine.sampler import TokenLogprobs

#: Seconds that a cache waits for memory of the arena: decode takes caches as fast as answers end.
ARENA_WAIT_SECONDS = 30.0
#: The layout of ``omnibus_llm.engine.kv_codec``: [layers, 2, kv_heads, T, head_dim].
TRANSFORMERS = "transformers"


class DecodeStart(msgspec.Struct, frozen=True):
    """Data of a prefill that decode needs in addition to the cache.

    ``seed`` is that of the first token's choice. ``finish`` is the reason if there is nothing to decode. ``here`` is
    the number of a sequence that waits in its slot; then there is no cache to read. ``resumed`` counts tokens of an
    earlier attempt before ``first_token``, which are in the cache. With ``thinking`` the answer continues reasoning
    that its prompt started. ``logprobs`` are those of the first token. ``layout`` is the arrangement of the cache,
    which only an engine with the same arrangement reads. With a repetition penalty an array carries the prompt's ids.
    For a talker it also carries the ``rows`` of resumed tokens, of this ``width``.
    """

    length: int
    rope_delta: int
    first_token: int
    seed: int
    prompt_tokens: int
    image_tokens: int = 0
    audio_tokens: int = 0
    video_tokens: int = 0
    cached_tokens: int = 0
    finish: str | None = None
    here: int | None = None
    resumed: int = 0
    thinking: bool | None = False
    logprobs: TokenLogprobs | None = None
    layout: str = TRANSFORMERS
    rows: int = 0
    width: int = 0

    @property
    def counts(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "image_tokens": self.image_tokens,
            "audio_tokens": self.audio_tokens,
            "video_tokens": self.video_tokens,
            **({"cached_tokens": self.cached_tokens} if self.cached_tokens else {}),
        }


async def put_start(
    job: Job, start: DecodeStart, ids: Any, penalty: float, rows: Sequence[np.ndarray | None] = ()
) -> None:
    """Send ``start`` with its array of rows and ids.

    ``ids`` of the prompt are sent for a repetition ``penalty``, and ``rows`` [H] for a talker.
    """
    id_array = np.unique(np.array(ids, np.int32)) if penalty != 1.0 else None
    row_arrays = [row for row in rows if row is not None]
    if row_arrays:  # one array carries both
        start = msgspec.structs.replace(start, rows=len(row_arrays), width=len(row_arrays[0]))
        words = np.concatenate(row_arrays, dtype=np.float32).view(np.int32)
        id_array = words if id_array is None else np.concatenate([words, id_array])
    await job.put("start", msgspec.to_builtins(start), id_array)


def read_start(value: Any, layout: str) -> tuple[DecodeStart, np.ndarray | None, list[np.ndarray]]:
    """Read the output of ``put_start``: the start, the ids seen, and rows.

    ``layout`` is that of the engine's caches. Rows are float32 [H]. Raises ``ProtocolError``.
    """
    about, words = value if isinstance(value, Item) else (value, None)
    try:
        start = msgspec.convert(about, DecodeStart)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"start is not that of a prefill: {error}") from None
    if start.layout != layout:
        raise ProtocolError(
            f"the cache of prefill has layout {start.layout!r}, but decode reads {layout!r}: "
            "declare the same engine, device and dtype for both"
        )
    count, width = start.rows, start.width
    if not count:
        return start, words, []
    if words is None or words.dtype != np.int32 or len(words) < count * width:
        raise ProtocolError(f"start must carry {count} rows of width {width}")
    rows = np.array(words[: count * width]).view(np.float32).reshape(count, width)
    return start, words[count * width :] if len(words) > count * width else None, list(rows)


def started_tokens(start: DecodeStart, resumed_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens of an answer that prefill processed.

    ``resumed_ids`` are those of an earlier attempt. Raises ``ProtocolError`` if some of them are unknown here.
    """
    if len(resumed_ids) < start.resumed:
        raise ProtocolError(f"prefill resumed after {start.resumed} tokens, and only {len(resumed_ids)} reached decode")
    return (*resumed_ids[: start.resumed], start.first_token)


async def put_cache(job: Job, about: dict[str, Any], array: np.ndarray | None) -> None:
    """Send the cache; waits while the arena is full.

    As many caches wait as the executor takes invocations.
    """
    end = min(time.time() + ARENA_WAIT_SECONDS, job.deadline)
    while True:
        try:
            return await job.put("cache", about, array)
        except ArenaFull:
            if time.time() >= end:
                raise
