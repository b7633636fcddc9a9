"""Statistics of the scheduler at every step, and vLLM's metrics for Prometheus."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import prometheus_client
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase

from omnibus.metrics.collectors import REGISTRY


class EngineCounts:
    """The last and the summed values; small JSON."""

    def __init__(self) -> None:
        self.used = 0
        self.waiting = 0
        self.kv_usage = 0.0
        self.tokens = 0
        self.prompt_tokens = 0
        self.preempted = 0
        self.guessed_tokens = 0
        self.accepted_tokens = 0
        self._queries = 0
        self._hits = 0

    def add_step(self, scheduler: Any, iteration: Any) -> None:
        """Add the stats of one step."""
        if scheduler is not None:
            self.used = scheduler.num_running_reqs
            self.waiting = scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs
            self.kv_usage = scheduler.kv_cache_usage
            self._queries += scheduler.prefix_cache_stats.queries
            self._hits += scheduler.prefix_cache_stats.hits
            if scheduler.spec_decoding_stats is not None:
                self.guessed_tokens += scheduler.spec_decoding_stats.num_draft_tokens
                self.accepted_tokens += scheduler.spec_decoding_stats.num_accepted_tokens
        if iteration is not None:
            self.tokens += iteration.num_generation_tokens
            self.prompt_tokens += iteration.num_prompt_tokens
            self.preempted += iteration.num_preempted_reqs

    def to_json(self) -> dict[str, Any]:
        """Return the counts in the form of the runner's ``stats``."""
        return {
            "used": self.used,
            "waiting": self.waiting,
            "tokens": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            "preempted": self.preempted,
            "guessed_tokens": self.guessed_tokens,
            "accepted_tokens": self.accepted_tokens,
            "kv_usage": round(self.kv_usage, 4),
            "prefix_hits": self._hits,
            "prefix_hit_rate": round(self._hits / self._queries, 4) if self._queries else 0.0,
        }


class VllmStatLogger(StatLoggerBase):
    """vLLM's interface to ``EngineCounts``."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0, counts: EngineCounts | None = None) -> None:
        self._counts = counts or EngineCounts()

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        self._counts.add_step(scheduler_stats, iteration_stats)

    def log_engine_initialized(self) -> None:
        """Do nothing: the runner reports that it is ready."""


class VllmCollector(Collector):
    """vLLM's metrics, which vLLM keeps in the process's registry.

    They have vLLM's own names.
    """

    def describe(self) -> Iterator[Metric]:
        return iter(())  # a restarted engine has new ones

    def collect(self) -> Iterator[Metric]:
        return (family for family in prometheus_client.REGISTRY.collect() if family.name.startswith("vllm:"))


@cache
def register_vllm_metrics() -> None:
    """Add vLLM's metrics to those of this process."""
    REGISTRY.register(VllmCollector())
