"""Transfers caches of prompts to and from other engines.

The scheduler's half chooses the blocks, and the workers' half copies them. It copies into a request's shared memory as
soon as the prompt is computed. It copies out of it before the first step of a request with a cache.

vLLM shows each layer as [blocks, heads, tokens, content] for any layout in memory. A cache is therefore transferred
with all heads of the model, one after another. With tensor parallelism each worker copies its own heads to and from
their places, so engines with different degrees read each other's caches.
"""

import logging
import os
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request

from omnibus.errors import Fatal
from omnibus_llm.vllm.protocol import Place, map_memory, open_memory

log = logging.getLogger(__name__)

#: Keys in ``extra_args`` for the place of a request's cache, and for the one it brings (an ``ExternalCache``).
SAVE_ARGUMENT, LOAD_ARGUMENT = "omnibus_gives", "omnibus_takes"
#: Key for the number of its tokens that were chosen elsewhere.
DRAWS_ARGUMENT = "omnibus_draws"


@dataclass
class Moves(KVConnectorMetadata):
    """Copy operations of the workers in one step: places and the blocks that belong to them."""

    gives: list[tuple[Place, list[int]]] = field(default_factory=list)
    takes: list[tuple[Place, list[int]]] = field(default_factory=list)


class HeadShard(NamedTuple):
    """Heads of keys and values of one worker: ``heads`` of the model's ``total``, from ``first``.

    If a model has fewer heads than workers, several share one head, which the first of them ``writes``.
    """

    total: int
    first: int
    heads: int
    writes: bool = True

    @classmethod
    def of_rank(cls, total: int, rank: int, size: int) -> "HeadShard":
        """Return the heads of worker ``rank`` of ``size``, as vLLM divides them; one is a multiple of the other."""
        if total >= size:
            return cls(total, rank * (total // size), total // size)
        copies = size // total
        return cls(total, rank // copies, 1, rank % copies == 0)


class CacheConnector(KVConnectorBase_V1):
    """Both directions, for models with one kind of cache in all layers. A cache is uint8 [layers, blocks, nbytes]."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._tokens = vllm_config.cache_config.block_size
        self._blocks = kv_cache_config.num_blocks
        self._giving: dict[str, Request] = {}
        self._takes: list[tuple[Place, list[int]]] = []
        self._layers: list[torch.Tensor] = []
        self._shard = HeadShard(1, 0, 1)
        self._config = vllm_config

    # The scheduler's half

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        load_arguments = extra_arguments(request.sampling_params).get(LOAD_ARGUMENT)
        return (0 if load_arguments is None else max(0, load_arguments["length"] - num_computed_tokens)), False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        arguments = extra_arguments(request.sampling_params)
        if SAVE_ARGUMENT in arguments:
            self._giving[request.request_id] = request
        if num_external_tokens > 0:
            [ids] = blocks.get_block_ids()
            self._takes.append(
                (arguments[LOAD_ARGUMENT]["place"], ids[: self._block_count(arguments[LOAD_ARGUMENT]["length"])])
            )

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Moves:
        takes, self._takes = self._takes, []
        gives = []
        for id, count in scheduler_output.num_scheduled_tokens.items():
            request = self._giving.get(id)
            if request is not None and request.num_computed_tokens + count >= request.num_prompt_tokens:
                [ids] = scheduler_output.kv_connector_block_state.resolve_block_ids(id)
                gives.append(
                    (
                        extra_arguments(request.sampling_params)[SAVE_ARGUMENT],
                        ids[: self._block_count(request.num_prompt_tokens)],
                    )
                )
                del self._giving[id]
        return Moves(gives, takes)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._giving.pop(request.request_id, None)
        return False, None

    def _block_count(self, length: int) -> int:
        return -(-length // self._tokens)

    # The workers' half

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        # Blocks are the first or the second dimension, depending on the kernels.
        layers = kv_caches.values()
        self._layers = [layer if layer.shape[0] == self._blocks else layer.movedim(1, 0) for layer in layers]
        self._shard = self._find_shard(self._layers[0].shape[1])

    def _find_shard(self, heads: int) -> HeadShard:
        model, size = self._config.model_config, self._config.parallel_config.tensor_parallel_size
        if size == 1:
            return HeadShard(heads, 0, heads)
        total = 1 if model.use_mla else model.get_total_num_kv_heads()
        shard = HeadShard.of_rank(total, get_tensor_model_parallel_rank(), size)
        if shard.heads != heads:
            raise Fatal(
                f"this model's caches cannot be transferred: its layers have {heads} heads on each of {size} GPUs, "
                f"not {shard.heads}. Declare a thinker, or halves with tensor_parallel 1"
            )
        return shard

    def describe_layout(self, backend: str) -> dict[str, Any]:
        """Return the fields of ``omnibus_llm.vllm.protocol.CacheBlockLayout``."""
        first, total = self._layers[0], self._shard.total
        kind = str(first.dtype).removeprefix("torch.")
        order = _kernel_layout(first, self._tokens)
        name = f"vllm 0.32 {backend} {order} {kind} {len(self._layers)} x {[total, *first.shape[2:]]}"
        nbytes = first[0, 0].numel() * first.itemsize * total
        return {
            "name": name,
            "layers": len(self._layers),
            "nbytes": nbytes,
            "tokens": self._tokens,
            "blocks": self._blocks,
        }

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        for place, ids in cast(Moves, self._get_connector_metadata()).takes:
            try:
                words = map_memory(place, torch.uint8)
            except (OSError, RuntimeError) as error:
                log.info("the sender of a cache is gone: %s", error)
                continue
            index = torch.tensor(ids, device=self._layers[0].device)
            for layer, blocks in zip(self._layers, words.view(len(self._layers), -1), strict=True):
                layer[index] = self._own_heads(layer, blocks, len(ids)).to(layer.device)

    def _own_heads(self, layer: torch.Tensor, blocks: torch.Tensor, count: int) -> torch.Tensor:
        """Return this worker's heads [count, heads, tokens, content] in a layer's blocks.

        ``blocks`` are the bytes of ``count`` blocks of all heads.
        """
        shard = self._shard
        whole = blocks.view(layer.dtype).view(count, shard.total, *layer.shape[2:])
        return whole[:, shard.first : shard.first + shard.heads]

    def wait_for_save(self) -> None:
        if not self._shard.writes:
            return
        for place, ids in cast(Moves, self._get_connector_metadata()).gives:
            try:
                self._write_cache(place, ids)
            except OSError as error:
                log.info("the receiver of the cache of a prompt is gone: %s", error)

    def _write_cache(self, place: Place, ids: list[int]) -> None:
        fd = open_memory(place, os.O_RDWR)
        try:
            # Sized for all heads: the worker that is first sets the same size as the others.
            heads = sum(layer[0, 0].numel() * layer.itemsize for layer in self._layers)
            os.ftruncate(fd, len(ids) * self._shard.total * heads)
            whole = map_memory({**place, "nbytes": os.fstat(fd).st_size}, torch.uint8, shared=True)
        finally:
            os.close(fd)
        index = torch.tensor(ids, device=self._layers[0].device)
        for layer, out in zip(self._layers, whole.view(len(self._layers), -1), strict=True):
            self._own_heads(layer, out, len(ids)).copy_(layer[index])

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: everything is loaded before the step."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing: everything is saved after the step."""


def extra_arguments(params: Any) -> dict[str, Any]:
    """Return the extra arguments that a request's sampling parameters carry; empty without any."""
    return (None if params is None else params.extra_args) or {}


def _kernel_layout(layer: torch.Tensor, tokens: int) -> str:
    """Return the rest of the layout of a block: its order in memory, or on a CPU the kernel's instruction set."""
    if layer.device.type != "cpu":
        return "".join(name for _, name in sorted(zip(layer.stride(), "BHNC", strict=True), reverse=True))
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    return _get_attn_isa(layer.dtype, tokens)
