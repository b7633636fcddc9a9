"""What the scheduler says of itself with every step."""

from typing import Any

from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase


class Counts:
    """The last and the summed values; small JSON."""

    def __init__(self) -> None:
        self.used = 0
        self.waiting = 0
        self.kv_usage = 0.0
        self.tokens = 0
        self.prompt_tokens = 0
        self.preempted = 0
        self._queries = 0
        self._hits = 0

    def take(self, scheduler: Any, iteration: Any) -> None:
        """Take the stats of one step."""
        if scheduler is not None:
            self.used = scheduler.num_running_reqs
            self.waiting = scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs
            self.kv_usage = scheduler.kv_cache_usage
            self._queries += scheduler.prefix_cache_stats.queries
            self._hits += scheduler.prefix_cache_stats.hits
        if iteration is not None:
            self.tokens += iteration.num_generation_tokens
            self.prompt_tokens += iteration.num_prompt_tokens
            self.preempted += iteration.num_preempted_reqs

    def json(self) -> dict[str, Any]:
        """As the runner's ``stats`` shows them."""
        return {
            "used": self.used,
            "waiting": self.waiting,
            "tokens": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            "preempted": self.preempted,
            "kv_usage": round(self.kv_usage, 4),
            "prefix_hit_rate": round(self._hits / self._queries, 4) if self._queries else 0.0,
        }


class Meter(StatLoggerBase):
    """vLLM's interface to ``Counts``."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0, counts: Counts | None = None) -> None:
        self._counts = counts or Counts()

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        self._counts.take(scheduler_stats, iteration_stats)

    def log_engine_initialized(self) -> None:
        """The runner says that it is ready."""
