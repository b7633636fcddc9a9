"""The engine of an encoder component: media bytes in, one embedding out, batched across requests.

A media item to measure an encoder with: a gray image, or a second of silence.

Batches across requests: an encoder takes all waiting items when it becomes free, and waits for no more.
"""

import asyncio
import io
import time
import wave
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from omnibus.encoding.image import encode_image
from omnibus.errors import BadMedia, BadRequest, StageUnavailable
from omnibus.executor.job_clock import charge_jobs, current_clock
from omnibus.executor.runner import Item, Job
from omnibus.executor.scheduler import Schedule, StepBudget
from omnibus.executor.step_budget import (
    NO_GOALS,
    BudgetSizes,
    CostTable,
    StepGoals,
    find_budget,
    measure_costs,
)
from omnibus_encoder.embedding_cache import EmbeddingCache, EncoderIdentity, EncoderResult, PartEncoder, SaltedItem
from omnibus_engines.component import ComponentSource, Hosted, by_size, run_in_pool
from omnibus_models.contract import MediaEncoder, Prepared
from omnibus_models.device import copy_to_host
from omnibus_models.limits import CANCELLED

_IMAGE_SIDE_PIXELS = 448  # about the size of images on web pages
_SAMPLE_RATE_HERTZ = 16_000


def sample_item(encoder: MediaEncoder) -> Prepared:
    """Return an item that ``encoder`` accepts."""
    if "image" in encoder.modalities:
        return encoder.prepare(memoryview(_grey_image()), "image")
    return encoder.prepare(memoryview(_silent_audio()), "audio")


def _grey_image() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (_IMAGE_SIDE_PIXELS, _IMAGE_SIDE_PIXELS), (128, 128, 128)).save(out, "PNG")
    return out.getvalue()


def _silent_audio() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(_SAMPLE_RATE_HERTZ)
        file.writeframes(bytes(2 * _SAMPLE_RATE_HERTZ))
    return out.getvalue()


Run = Callable[[Sequence[Prepared]], Awaitable[Sequence[Any]]]


class EngineLoop(Protocol):
    """A loop of steps that an encoder shares with a language model.

    See ``omnibus_llm.engine.engine``.
    """

    @property
    def schedule(self) -> Schedule[Any]: ...

    def raise_if_failed(self) -> None:
        """Raise the error that ended the loop, if it has ended."""

    def wake(self) -> None:
        """Wake the loop: an item has arrived."""


class QueuedItem:
    """One prepared item and the future of its result."""

    __slots__ = ("batcher", "clock", "item", "result")

    def __init__(self, batcher: "Batcher", item: Prepared) -> None:
        self.batcher = batcher
        self.item = item
        self.clock = current_clock()
        self.result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def tokens(self) -> int:
        return max(1, int(self.item.meta.get("n_tokens", 1)))

    async def run_batch(self, batch: "Sequence[QueuedItem]") -> None:
        await self.batcher.run_batch(batch)

    def fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)


class Batcher:
    """Feeds ``run`` with batches of one modality.

    A batch contains at most ``items`` items and ``tokens`` output tokens; a single larger item is accepted alone. The
    order is that of ``omnibus.executor.scheduler``. If a batch fails, its items run one by one, so that only the items
    at fault fail. With a ``loop``, the loop decides when a batch runs, and ``serve`` is not used.
    """

    def __init__(
        self, run: Run, *, items: int, tokens: int, loop: EngineLoop | None = None, patience: float = 0.0
    ) -> None:
        self._run = run
        self._loop = loop
        self._own: Schedule[QueuedItem] = Schedule(0, StepBudget(0, 0), patience=patience, whole=tokens, split=False)
        self._wake = asyncio.Event()
        self._failed: Exception | None = None
        self.budget = StepBudget(tokens, tokens, items)
        self.sizes: Counter[int] = Counter()

    @property
    def waiting(self) -> int:
        """Waiting items, including those of other encoders of the loop."""
        return self._schedule.media

    @property
    def _schedule(self) -> Schedule[Any]:
        return self._own if self._loop is None else self._loop.schedule

    async def encode(self, item: Prepared) -> Any:
        """Return the result of one item. If the caller is cancelled, the item is removed from the queue."""
        self._raise_if_failed()
        entry, kind = QueuedItem(self, item), (self, item.modality)
        self._schedule.kinds.setdefault(kind, self.budget)
        clock = entry.clock
        self._schedule.add_media(
            entry, entry.tokens, time.monotonic(), kind, clock.tenant, clock.came, continues=clock.continues
        )
        self._wake_loop()
        try:
            return await entry.result
        finally:
            self._schedule.remove_key(entry)

    async def serve(self) -> None:
        """Run batches until cancelled; sleep while no item waits."""
        try:
            while True:
                self._wake.clear()
                turn = self._own.next_step()
                if turn.media:
                    await self.run_batch(turn.media)
                else:
                    await self._wake.wait()
        finally:
            self._failed = StageUnavailable("the encoder was closed; send the request again")
            for entry in list(self._own):
                entry.fail(self._failed)

    async def run_batch(self, batch: Sequence[QueuedItem]) -> None:
        """Run the items of ``batch`` that are still needed; raises nothing."""
        batch = [entry for entry in batch if not entry.result.done()]
        if not batch:
            return
        for entry in batch:
            entry.clock.set_now()
        try:
            with charge_jobs([(entry.clock, float(entry.tokens)) for entry in batch]):
                results = await self._run([entry.item for entry in batch])
        except Exception as error:  # noqa: BLE001 - find the item at fault, and let the others continue
            await self._run_one_by_one(batch, error)
            return
        self.sizes[len(batch)] += 1
        for entry, result in zip(batch, results, strict=True):
            if not entry.result.done():
                entry.result.set_result(result)

    async def _run_one_by_one(self, batch: Sequence[QueuedItem], error: Exception) -> None:
        if len(batch) > 1:
            for entry in batch:
                await self.run_batch([entry])
        else:
            batch[0].fail(error)

    def _raise_if_failed(self) -> None:
        if self._loop is not None:
            self._loop.raise_if_failed()
        if self._failed is not None:
            raise self._failed

    def _wake_loop(self) -> None:
        if self._loop is None:
            self._wake.set()
        else:
            self._loop.wake()


@dataclass(frozen=True)
class EncodeSettings:
    """Limits of one encoder.

    ``items`` and ``tokens`` are the most media items and output tokens in one batch. ``decoders`` is the number of
    threads that decode media. ``threads`` are torch's in the compute thread. ``goals`` may lower ``tokens``. ``cache``
    is the bytes of embeddings to keep by content; with 0, equal items are computed each time.
    """

    items: int = 16
    tokens: int = 16384
    decoders: int = 2
    threads: int = 1
    goals: StepGoals = NO_GOALS
    cache: int = 0


#: Most bytes that are hashed in the event loop; more are hashed in a thread.
_MAX_INLINE_HASH_BYTES = 1 << 16


class _Media(NamedTuple):
    """One file with its modality and salt; ``alone`` if it is the only one of its request."""

    data: memoryview
    modality: str
    salt: str
    alone: bool


class SharedLoop(EngineLoop, Protocol):
    """The loop of a language model in the same process."""

    async def load(self) -> None:
        """Load the loop; each caller must call ``close`` as well."""

    async def close(self) -> None: ...


class EncodeRunner(Hosted[MediaEncoder]):
    """A ``Runner`` for vision and audio encoders.

    Input: ``media``, an ``Item`` whose array is the file (uint8) and whose data contains ``modality``. Without a
    ``modality`` it is an image that another task made, uint8 [height, width, 3]. Outputs: ``embedding``, float32
    [n_tokens, H] with ``modality`` and the family's meta, and ``tokens``, their number. Embedders of texts and images
    have one row for all tokens of an image.

    With a ``loop``, the loop decides which items go into which step. Media with the same content and ``salt`` are
    encoded once while their requests overlap or the embedding is kept. The same applies to parts of them, if the
    encoder can cut them.
    """

    def __init__(
        self,
        component: str,
        family: str,
        checkpoint: Path,
        device: str,
        dtype: str,
        settings: EncodeSettings,
        loop: SharedLoop | None = None,
    ) -> None:
        # On a GPU the language model's kernels run at the same time.
        super().__init__(
            ComponentSource(component, family, checkpoint, device, dtype), settings.threads, beside=loop is not None
        )
        self._settings = settings
        self._loop = loop
        self._decoders = ThreadPoolExecutor(settings.decoders, f"{component}-decode", torch.set_num_threads, (1,))
        self._batcher = Batcher(
            self._run_batch,
            items=settings.items,
            tokens=settings.tokens,
            loop=loop,
            patience=settings.goals.first_step_seconds,
        )
        self._results: EmbeddingCache[SaltedItem] | None = None
        if settings.cache:
            self._results = EmbeddingCache(settings.cache, self._encode_new, component)
        self._identity: EncoderIdentity
        self._parts: PartEncoder

    @property
    def keeps(self) -> bool:
        """True if the cache makes equal media cheaper the second time."""
        return self._results is not None

    async def run(self, job: Job) -> None:
        result = None if self._results is None else await self._find_result(self._results, job)
        if result is None:
            media = await self._read_media(await job.value("media"), job)
            if self._results is None:
                result = await self._batcher.encode(await self._prepare_media(media))
            else:
                result = await self._encode_cached(self._results, media)
        await job.put("embedding", result.meta, result.embeds)
        if job.has_consumer("tokens"):
            await job.put("tokens", {"value": result.meta["n_tokens"]})

    async def _set_up(self) -> None:
        if self._results is not None:
            self._identity = await asyncio.to_thread(EncoderIdentity, *self._source)
            self._parts = PartEncoder(self.model, self._identity, self._results, self._batcher.encode)
        if self._loop is not None:
            await self._loop.load()
        if self._settings.goals:
            await self._compute(self._measure_budget)
        if self._loop is None:
            self._start_loop(self._batcher.serve())

    async def _tear_down(self) -> None:
        if self._results is not None:
            await self._results.close()
        if self._loop is not None:
            await self._loop.close()
        await asyncio.to_thread(self._decoders.shutdown, cancel_futures=True)

    def stats(self) -> dict[str, Any]:
        return {
            "parameters": self.model.parameters,
            "waiting": self._batcher.waiting,
            "batches": by_size(self._batcher.sizes),
            **self.memory_stats(),
            **self._cache_stats(),
        }

    def _cache_stats(self) -> dict[str, Any]:
        if self._results is None:
            return {}
        return {"cache": self._results.stats(), "reused_parts": self._parts.reused}

    async def _read_media(self, media: Any, job: Job) -> _Media:
        if not isinstance(media, Item) or media.array is None:
            raise BadMedia("the media item has no bytes; upload it again", param="media")
        if "modality" not in media.data:
            return await self._read_array(media.array, job)
        modality = media.data["modality"]
        if modality not in self.model.modalities:
            known_modalities = ", ".join(sorted(self.model.modalities))
            raise BadRequest(f"this encoder reads {known_modalities}, not {modality}", param="media")
        return _Media(media.array.data, modality, str(media.data.get("salt", "")), self._is_alone(job, modality))

    async def _read_array(self, array: np.ndarray, job: Job) -> _Media:
        """Return an image from another task, encoded as an uploaded file."""
        if "image" not in self.model.modalities:
            raise BadRequest("this encoder does not read images, but a task made one", param="media")
        file = await run_in_pool(self._decoders, encode_image, array, "png")
        return _Media(memoryview(file), "image", "", self._is_alone(job, "image"))

    def _is_alone(self, job: Job, modality: str) -> bool:
        """Return True if the item of ``job`` is alone in its request."""
        return modality not in self.model.closer or _count_same_modality(job, modality) < 2

    async def _find_result(self, results: EmbeddingCache[SaltedItem], job: Job) -> EncoderResult | None:
        """Return the cached result for the digest that the gateway sent.

        The media are then neither opened nor pulled from another node.
        """
        media = job.inputs.get("media")
        if not isinstance(media, dict) or media.get("modality") not in self.model.modalities:
            return None
        try:
            content = bytes.fromhex(media.get("sha256", ""))
        except (TypeError, ValueError):
            return None
        modality = media["modality"]
        key = self._identity.item_key(content, modality, str(media.get("salt", "")), self._is_alone(job, modality))
        return await results.find(key) if content else None

    async def _encode_cached(self, results: EmbeddingCache[SaltedItem], media: _Media) -> EncoderResult:
        if media.data.nbytes <= _MAX_INLINE_HASH_BYTES:
            content = sha256(media.data)
        else:
            content = await asyncio.to_thread(sha256, media.data)
        key = self._identity.item_key(content.digest(), media.modality, media.salt, media.alone)
        return await results.get(key, partial(self._prepare_salted, media))

    async def _prepare_salted(self, media: _Media) -> SaltedItem:
        return SaltedItem(await self._prepare_media(media), media.salt)

    async def _encode_new(self, salted_item: SaltedItem) -> EncoderResult:
        """Encode an item that is not cached, reusing its cached parts."""
        parts = self.model.split_item(salted_item.item)
        if len(parts) < 2:
            return await self._batcher.encode(salted_item.item)
        keys = await asyncio.to_thread(self._parts.find_keys, salted_item, parts)
        return await self._parts.encode_missing(salted_item.item, parts, keys)

    async def _prepare_media(self, media: _Media) -> Prepared:
        args = (media.data, media.modality, *(() if media.alone else (False,)))
        cancel_event = Event()
        try:
            return await run_in_pool(self._decoders, self._prepare_in_thread, cancel_event, *args)
        finally:
            cancel_event.set()  # free the decoder of a job that is over

    def _prepare_in_thread(self, cancel_event: Event, *args: Any) -> Prepared:
        token = CANCELLED.set(cancel_event)
        try:
            return self.model.prepare(*args)
        finally:
            CANCELLED.reset(token)

    async def _run_batch(self, items: Sequence[Prepared]) -> list[EncoderResult]:
        return await self._compute(self._encode_batch, items)

    def _encode_batch(self, items: Sequence[Prepared]) -> list[EncoderResult]:
        return [
            EncoderResult({"modality": item.modality, **one.meta}, copy_to_host(_compact_rows(one.embeds)))
            for item, one in zip(items, self.model.encode(items), strict=True)
        ]

    def _measure_budget(self) -> None:
        """Measure batches, and lower the token budget to meet the goals."""
        budget, item, goals = self._batcher.budget, sample_item(self.model), self._settings.goals
        size = max(1, int(item.meta["n_tokens"]))
        most = max(1, budget.alone // size)

        def batch_seconds(count: int) -> float:
            begin = perf_counter()
            self._encode_batch([item] * count)  # to numpy: the device has finished
            return perf_counter() - begin

        batch_seconds(1)  # pay the one-time costs of the first pass
        items = measure_costs(batch_seconds, 1, most, max(goals.tbt, goals.first_step_seconds))
        decode = None if self._loop is None else self._loop.schedule.costs.decode
        least = decode.seconds(1) if decode is not None else 0.0
        beside, alone = find_budget(items.seconds, goals, least, BudgetSizes(1, most, most))
        costs = CostTable((count * size, items.seconds(count)) for count in items.sizes)
        self._batcher.budget = budget._replace(beside=beside * size, alone=alone * size, costs=costs)


def _count_same_modality(job: Job, modality: str) -> int:
    """Count the items of ``modality`` with the same destination as ``job``'s.

    An item that another node makes may have any modality, so it is counted.
    """
    peer_media = [media for peer in job.peers if isinstance(media := peer.get("media"), dict)]
    return sum(media.get("modality", modality) == modality for media in peer_media)


def _compact_rows(rows: Tensor) -> Tensor:
    """Copy ``rows`` if their storage is larger: kept rows must not keep the whole batch in memory."""
    return rows.clone() if rows.untyped_storage().nbytes() > rows.nbytes else rows
