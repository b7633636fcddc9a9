"""Gives caches of prompts to other engines, and takes those that others have given.

The scheduler's half says which blocks, the workers' half copies them: into a request's shared memory as soon as
its prompt is computed, and out of it before the first step of a request that brings a cache along.
"""

import logging
import os
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request

from services.llm.vllm.shared_memory import Place, map_memory, open_memory

log = logging.getLogger(__name__)

#: Where a request says in ``extra_args`` where its cache goes, and which it brings (the fields of ``Taken``).
SAVE_ARGUMENT, LOAD_ARGUMENT = "omnibus_gives", "omnibus_takes"
#: Where it says how many of its tokens were chosen elsewhere.
DRAWS_ARGUMENT = "omnibus_draws"


@dataclass
class Moves(KVConnectorMetadata):
    """Copy operations of the workers in one step: places and the blocks that belong to them."""

    gives: list[tuple[Place, list[int]]] = field(default_factory=list)
    takes: list[tuple[Place, list[int]]] = field(default_factory=list)


class CacheConnector(KVConnectorBase_V1):
    """Both ways, for models whose layers all have one kind of cache. A cache is uint8 [layers, blocks, nbytes]."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._tokens = vllm_config.cache_config.block_size
        self._blocks = kv_cache_config.num_blocks
        self._giving: dict[str, Request] = {}
        self._takes: list[tuple[Place, list[int]]] = []
        self._layers: list[torch.Tensor] = []

    # The scheduler's half

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        taken = extra_arguments(request.sampling_params).get(LOAD_ARGUMENT)
        return (0 if taken is None else max(0, taken["length"] - num_computed_tokens)), False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        wanted = extra_arguments(request.sampling_params)
        if SAVE_ARGUMENT in wanted:
            self._giving[request.request_id] = request
        if num_external_tokens > 0:
            [ids] = blocks.get_block_ids()
            self._takes.append(
                (wanted[LOAD_ARGUMENT]["place"], ids[: self._block_count(wanted[LOAD_ARGUMENT]["length"])])
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
        # Blocks are the first or the second dimension, as the kernels want it.
        layers = kv_caches.values()
        self._layers = [layer if layer.shape[0] == self._blocks else layer.movedim(1, 0) for layer in layers]

    def describe_layout(self, backend: str) -> dict[str, Any]:
        """The fields of ``services.llm.vllm.protocol.CacheBlockLayout``."""
        first = self._layers[0]
        kind = str(first.dtype).removeprefix("torch.")
        order = _kernel_layout(first, self._tokens)
        name = f"vllm 0.32 {backend} {order} {kind} {len(self._layers)} x {list(first.shape[1:])}"
        nbytes = first[0].numel() * first.itemsize
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
                log.info("nobody waits for the answer to a cache any more: %s", error)
                continue
            index = torch.tensor(ids, device=self._layers[0].device)
            for layer, blocks in zip(self._layers, words.view(len(self._layers), -1), strict=True):
                layer[index] = blocks.view(layer.dtype).view(len(ids), *layer.shape[1:]).to(layer.device)

    def wait_for_save(self) -> None:
        for place, ids in cast(Moves, self._get_connector_metadata()).gives:
            try:
                self._write_cache(place, ids)
            except OSError as error:
                log.info("nobody waits for the cache of a prompt any more: %s", error)

    def _write_cache(self, place: Place, ids: list[int]) -> None:
        fd = open_memory(place, os.O_RDWR)
        try:
            os.ftruncate(fd, sum(len(ids) * layer[0].numel() * layer.itemsize for layer in self._layers))
            whole = map_memory({**place, "nbytes": os.fstat(fd).st_size}, torch.uint8, shared=True)
        finally:
            os.close(fd)
        index = torch.tensor(ids, device=self._layers[0].device)
        for layer, out in zip(self._layers, whole.view(len(self._layers), -1), strict=True):
            out.copy_(layer[index].contiguous().view(torch.uint8).view(-1))

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Everything was loaded before the step."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Everything is saved after the step."""


def extra_arguments(params: Any) -> dict[str, Any]:
    """Return the extra arguments that a request's sampling parameters carry; empty without any."""
    return (None if params is None else params.extra_args) or {}


def _kernel_layout(layer: torch.Tensor, tokens: int) -> str:
    """Return the rest of the layout of a block: strides, or on a CPU the instruction set of the attention kernel."""
    if layer.device.type != "cpu":
        return str(layer.stride())
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    return _get_attn_isa(layer.dtype, tokens)
