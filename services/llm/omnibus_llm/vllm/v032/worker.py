"""Additions to vLLM's workers."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.v1.core.sched.output import SchedulerOutput

from omnibus_llm.vllm.v032.hidden_states import BlockRows, HiddenRowWriter
from omnibus_llm.vllm.v032.inputs import DELTA, POSITIONS
from omnibus_llm.vllm.v032.kv_connector import DRAWS_ARGUMENT, LOAD_ARGUMENT, CacheConnector, extra_arguments


class Worker:
    """Mixed into the worker's class; its methods are called by name before the first request."""

    model_runner: Any

    def omnibus_begin(self, rows: bool) -> dict[str, int]:
        """Take positions from requests and, with ``rows``, write hidden rows.

        Returns how many ``parameters`` this worker holds, and 1 for ``keeps_rows`` if it keeps rows with their blocks.
        """
        runner = self.model_runner
        if runner.device.type == "cpu":
            torch.Generator = Rewinding  # type: ignore[misc]
        model = runner.get_model()
        if hasattr(model, "get_mrope_input_positions"):
            model.get_mrope_input_positions = _request_positions(model.get_mrope_input_positions)
        # Only one worker has the rows, and it has all of them.
        block_rows = None
        if rows and get_tp_group().is_first_rank and get_pp_group().is_last_rank:
            block_rows = _open_block_rows(runner)
            runner._model_forward = HiddenRowWriter(runner, runner._model_forward, block_rows)
        runner._update_states = _resuming_update(runner, runner._update_states)
        if (
            runner.supports_mm_inputs and runner.model_config.enforce_eager
        ):  # graphs are recorded for one kind of inputs
            runner._preprocess = by_token_ids(runner, runner._preprocess)
        models = [model, *_draft_models(runner)]
        parameters = sum(parameter.numel() for each in models for parameter in each.parameters())
        return {"parameters": parameters, "keeps_rows": int(block_rows is not None)}

    def omnibus_memory(self) -> dict[str, int]:
        """Return the bytes of this worker's keys, values and GPU.

        Those of keys and values are per token and in total; those of the GPU are the reserved ones.
        """
        cache_bytes = {
            each.data_ptr(): each.numel() * each.element_size() for each in _cache_tensors(self.model_runner)
        }
        config = self.model_runner.cache_config
        tokens = (config.num_gpu_blocks or 0) * config.block_size
        on_gpu = self.model_runner.device.type == "cuda"
        return {
            "kv_bytes": sum(cache_bytes.values()),
            "kv_bytes_per_token": round(sum(cache_bytes.values()) / tokens) if tokens else 0,
            "engine_gpu_bytes": torch.cuda.max_memory_reserved() if on_gpu else 0,
        }

    def omnibus_cache(self) -> dict[str, Any]:
        """Return the fields of ``CacheBlockLayout``."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        connector = cast(CacheConnector, get_kv_transfer_group())
        return connector.describe_layout(self.model_runner.attn_groups[0][0].backend.get_name())


def _draft_models(runner: Any) -> list[torch.nn.Module]:
    """Return the draft model of a runner, if there is one."""
    draft_model = getattr(getattr(runner, "drafter", None), "model", None)
    return [] if draft_model is None else [draft_model]


def _open_block_rows(runner: Any) -> BlockRows | None:
    """Allocate the rows of a runner's blocks; None without a prefix cache or with blocks of several kinds."""
    config = runner.kv_cache_config
    if not runner.cache_config.enable_prefix_caching or len(config.kv_cache_groups) != 1:
        return None
    return BlockRows(config.num_blocks, config.kv_cache_groups[0].kv_cache_spec.block_size)


def _cache_tensors(runner: Any) -> list[torch.Tensor]:
    """Return all tensors of a runner's KV cache; some layers have several."""
    return [one for each in runner.kv_caches for one in (each if isinstance(each, list | tuple) else (each,))]


class Rewinding(torch.Generator):
    """A CPU's generator that can be rewound.

    vLLM draws a token for each step of a prompt, then undoes all draws but the last. It does so by an offset, which
    generators of a CPU do not have. Before the last step there are no other draws, except those made elsewhere.
    """

    _start: torch.Tensor | None = None

    def mark_start(self) -> None:
        """Make the current state the one to rewind to, not the seed."""
        self._start = self.get_state()

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> torch.Generator:
        if self._start is None:
            return self.manual_seed(self.initial_seed())
        return self.set_state(self._start)


def _resuming_update(runner: Any, update: Callable[..., Any]) -> Callable[..., Any]:
    # A sequence whose first tokens were made elsewhere continues with its positions and its random numbers.
    def update_and_resume(scheduler_output: SchedulerOutput) -> Any:
        new = [
            one for one in scheduler_output.scheduled_new_reqs if DRAWS_ARGUMENT in extra_arguments(one.sampling_params)
        ]
        result = update(scheduler_output)
        for one in new:
            state, extra = runner.requests[one.req_id], extra_arguments(one.sampling_params)
            load_arguments = extra.get(LOAD_ARGUMENT)
            if load_arguments is not None and state.mrope_positions is not None:
                state.mrope_positions = state.mrope_positions + load_arguments["delta"]
                state.mrope_position_delta = load_arguments["delta"]
            if state.generator is not None:
                _skip_draws(runner, state.generator, extra[DRAWS_ARGUMENT])
        return result

    return update_and_resume


def _skip_draws(runner: Any, generator: torch.Generator, count: int) -> None:
    """Advance ``generator`` past the choice of ``count`` tokens."""
    for _ in range(count):
        _draw_random(runner, generator)
    if isinstance(generator, Rewinding):
        generator.mark_start()


def _draw_random(runner: Any, generator: torch.Generator) -> None:
    """Draw random numbers as vLLM does for one token."""
    if runner.device.type == "cpu":
        torch.randint(0, 2**31, (1,), generator=generator)
    else:
        torch.empty(runner.input_batch.vocab_size, device=runner.device).exponential_(generator=generator)


def by_token_ids(runner: Any, preprocess: Callable[..., Any]) -> Callable[..., Any]:
    """Start steps without media from token ids, as for text-only models.

    For a model that accepts media, vLLM looks up the rows of all tokens outside of the model, and copies them.
    """

    def preprocess_step(scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        if any(_reads_media(runner.requests[name]) for name in runner.input_batch.req_ids):
            return preprocess(scheduler_output, *args, **kwargs)
        runner.supports_mm_inputs = False
        try:
            return preprocess(scheduler_output, *args, **kwargs)
        finally:
            runner.supports_mm_inputs = True

    return preprocess_step


def _reads_media(state: Any) -> bool:
    """True until the rows of all media of a request are computed."""
    places = [feature.mm_position for feature in state.mm_features]
    return any(place.offset + place.length > state.num_computed_tokens for place in places)


def _request_positions(count: Callable[..., tuple[torch.Tensor, int]]) -> Callable[..., tuple[torch.Tensor, int]]:
    # The family's positions equal vLLM's if a video has a constant rate; vLLM has no times of single frames.
    def find_positions(ids: Sequence[int], features: Sequence[Any]) -> tuple[torch.Tensor, int]:
        for feature in features:
            if feature.data is not None and POSITIONS in feature.data:
                return feature.data[POSITIONS].data.long(), int(feature.data[DELTA].data)
        return count(ids, features)

    return find_positions
