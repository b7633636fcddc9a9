"""A decoder with the engine that serves it: the common base of language models and talkers."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from omnibus.bus.messages import BatchCounts
from omnibus_engines.component import ComponentSource, Hosted, by_size
from omnibus_llm.engine.engine import BatchingEngine, EngineLimits
from omnibus_llm.engine.sequence import DecoderSequence
from omnibus_llm.engine.step import Feed
from omnibus_models.contract import Decoder
from omnibus_models.int8_weights import quantise_weights
from omnibus_models.packed_weights import pack_weights

D = TypeVar("D", bound=Decoder)
S = TypeVar("S", bound=DecoderSequence)


class HostedDecoder(Hosted[D], Generic[D, S]):
    """A decoder, its ``engine``, and ``context``, the longest sequence; both are set by ``load``.

    ``feed`` makes the engine's inputs. A ``limits.context`` of 0 means the model's own.
    """

    def __init__(
        self,
        source: ComponentSource,
        threads: int,
        limits: EngineLimits,
        feed: Callable[[D], Feed[S]],
        *,
        beside: bool = False,
    ) -> None:
        super().__init__(source, threads, beside=beside)
        self.engine: BatchingEngine[S]
        self.context: int
        self._limits = limits
        self._feed = feed
        self._parallel = beside and source.device.startswith("cuda")

    @property
    def batch_counts(self) -> BatchCounts:
        """See ``Runner``."""
        return self.engine.batch_counts

    def stats(self) -> dict[str, Any]:
        engine = self.engine
        return {
            "parameters": self.model.parameters,
            "slots": self._limits.slots,
            "used": engine.used,
            "waiting": engine.waiting,
            "tokens": engine.tokens,
            "batches": by_size(engine.batches),
            "copied_prompts": engine.copied_prompts,
            "kv_bytes_per_token": engine.kv_token_bytes,
            "kv_bytes": engine.kv_token_bytes * engine.rows * self.context,
            **self.memory_stats(),
        }

    def _load_model(self) -> D:
        model = super()._load_model()
        if self._limits.int8:
            quantise_weights(model.module)
        pack_weights(model.module)
        return model

    async def _set_up(self) -> None:
        self.context = min(self._limits.context or self.model.context, self.model.context)
        limits = self._limits._replace(context=self.context)
        self.engine = BatchingEngine(self.model, self._feed(self.model), self._compute, limits, parallel=self._parallel)
        await self.engine.start()
        self._start_loop(self.engine.serve())
