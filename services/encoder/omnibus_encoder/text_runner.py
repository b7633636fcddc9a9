"""The base of runners of texts.

They tokenise in one thread and batch across requests.
"""

import asyncio
import json
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from omnibus.errors import BadRequest
from omnibus.executor.runner import Item
from omnibus_encoder.batcher import Batcher
from omnibus_encoder.media_encoder import EncodeSettings
from omnibus_engines.component import ComponentSource, Hosted, M, by_size
from omnibus_models.contract import Prepared


class TextRunner(Hosted[M]):
    """One component that takes texts."""

    def __init__(self, source: ComponentSource, settings: EncodeSettings) -> None:
        super().__init__(source, settings.threads)
        self._batcher = Batcher(self._run_batch, items=settings.items, tokens=settings.tokens)
        # A tokenizer is not safe for two threads at once, and must not block the loop.
        self._words = ThreadPoolExecutor(1, "words")

    def stats(self) -> dict[str, Any]:
        return {
            "parameters": self.model.parameters,
            "waiting": self._batcher.waiting,
            "batches": by_size(self._batcher.sizes),
        }

    async def _run_batch(self, texts: Sequence[Prepared]) -> Sequence[Any]:
        return await self._compute(self._compute_batch, texts)

    @abstractmethod
    def _compute_batch(self, texts: Sequence[Prepared]) -> Sequence[Any]:
        """Return the result of each of ``texts``, in the compute thread."""

    async def _set_up(self) -> None:
        self._start_loop(self._batcher.serve())

    async def _tear_down(self) -> None:
        await asyncio.to_thread(self._words.shutdown, cancel_futures=True)


def read_json(value: Any, param: str) -> Any:
    """Return ``value``, or the JSON of an ``Item`` with its UTF-8 bytes. Raises ``BadRequest``."""
    if not isinstance(value, Item) or value.array is None:
        return value
    try:
        return json.loads(value.array.tobytes())
    except ValueError:
        raise BadRequest(f"{param} is not UTF-8 JSON; send a JSON list of texts", param=param) from None
