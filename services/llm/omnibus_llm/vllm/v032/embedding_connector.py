"""Reads embeddings from encoders in place of vLLM's vision and audio towers.

The scheduler's half holds a descriptor of a request's parcel from before its first step. So the worker's half can map
it at any time, even if the request has been aborted in between.
"""

import os
from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from vllm.config import VllmConfig
from vllm.distributed.ec_transfer.ec_connector.base import (
    ECConnectorBase,
    ECConnectorMetadata,
    ECConnectorRole,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from omnibus_llm.vllm.protocol import Place, map_memory, open_memory, relocate_place


@dataclass
class EmbeddingLoads(ECConnectorMetadata):
    """Embeddings that the workers must read before the next step: key to location."""

    items: dict[str, tuple[Place, int, tuple[int, int]]] = field(default_factory=dict)


class EmbeddingConnector(ECConnectorBase):
    """A consumer only. Requests carry ``ec_transfer_params``: ``{"place", "items": {key: [offset, rows, width]}}``."""

    def __init__(self, vllm_config: VllmConfig, role: ECConnectorRole) -> None:
        super().__init__(vllm_config, role)
        self._dtype = vllm_config.model_config.dtype
        self._device = torch.device(vllm_config.device_config.device_type)
        self._held: dict[str, tuple[int, Place]] = {}
        self._lost: set[str] = set()
        self._loads: dict[str, tuple[Place, int, tuple[int, int]]] = {}
        # Steps that may be in progress in the workers at a time, and one that is being scheduled.
        self._late = 2 + vllm_config.parallel_config.pipeline_parallel_size
        self._going: deque[list[int]] = deque()
        self._finished: list[int] = []

    # The scheduler's half

    def has_cache_item(self, identifier: str) -> bool:
        """Return True: there is no tower, so nothing is ever computed."""
        return True

    def ensure_cache_available(self, request: Request, num_computed_tokens: int) -> bool:
        """Hold the request's parcel. If the parcel is gone, only this request fails."""
        if request.request_id in self._held:
            return True
        try:
            place = _transfer_params(request)["place"]
            fd = open_memory(place)
        except (KeyError, OSError):
            self._lost.add(request.request_id)
            return False
        self._held[request.request_id] = (fd, relocate_place(place, fd))
        return True

    def take_unavailable_requests(self) -> set[str]:
        lost_requests, self._lost = self._lost, set()
        return lost_requests

    def update_state_after_alloc(self, request: Request, index: int) -> None:
        key = request.mm_features[index].identifier
        offset, rows, width = _transfer_params(request)["items"][key]
        self._loads[key] = (self._held[request.request_id][1], offset, (rows, width))

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> EmbeddingLoads:
        loads, self._loads = self._loads, {}
        self._going.append(self._finished)
        self._finished = []
        while len(self._going) > self._late:
            for fd in self._going.popleft():
                os.close(fd)
        return EmbeddingLoads(loads)

    def request_finished(self, request: Request) -> tuple[bool, dict[str, Any] | None]:
        held_entry = self._held.pop(request.request_id, None)
        if held_entry is not None:
            self._finished.append(held_entry[0])
        return False, None

    # The workers' half

    def start_load_caches(self, encoder_cache: dict[str, torch.Tensor], **kwargs: Any) -> None:
        loads = cast(EmbeddingLoads, self._get_connector_metadata())
        for key, (place, offset, shape) in loads.items.items():
            if key not in encoder_cache:
                start, (rows, width) = offset // self._dtype.itemsize, shape
                whole = map_memory(place, self._dtype)
                encoder_cache[key] = whole[start : start + rows * width].view(rows, width).to(self._device)

    def save_caches(self, encoder_cache: dict[str, torch.Tensor], mm_hash: str, **kwargs: Any) -> None:
        """Do nothing: no embeddings are computed here."""


def _transfer_params(request: Request) -> dict[str, Any]:
    return request.ec_transfer_params or {}
