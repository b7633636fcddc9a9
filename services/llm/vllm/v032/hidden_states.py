"""Gives hidden rows to whoever asks: what the last layer says after its norm, row by row, as it is computed.

The output of the model's forward pass is read where the model runner receives it. Unlike a hook on a
layer this also works when the layers are compiled or replayed as a CUDA graph.
"""

import logging
import os
from collections.abc import Callable
from typing import Any

import torch

from services.llm.vllm.shared_memory import open_memory

log = logging.getLogger(__name__)

#: Where a request says in ``extra_args`` that it wants its rows.
ROWS_ARGUMENT = "omnibus_rows"


class HiddenRowWriter:
    """Writes the rows of the requests in a batch into their owners' memory, each at its position."""

    def __init__(self, runner: Any, forward: Callable[..., Any]) -> None:
        self._runner = runner
        self._forward = forward
        self._open: dict[str, int | None] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        output = self._forward(*args, **kwargs)
        if isinstance(output, torch.Tensor):
            self._write_rows(output)
        return output

    def _write_rows(self, hidden: torch.Tensor) -> None:
        batch, requests = self._runner.input_batch, self._runner.requests
        self._close_finished(requests)
        starts = self._runner.query_start_loc.np
        for index, request in enumerate(batch.req_ids):
            fd = self._row_descriptor(request, requests)
            if fd is not None:
                rows = hidden[int(starts[index]) : int(starts[index + 1])].float().cpu().contiguous()
                place = int(batch.num_computed_tokens_cpu[index]) * rows.shape[1] * rows.element_size()
                os.pwrite(fd, rows.numpy().data.cast("B"), place)

    def _row_descriptor(self, request: str, requests: Any) -> int | None:
        if request not in self._open:
            self._open[request] = _open_rows(requests[request])
        return self._open[request]

    def _close_finished(self, requests: Any) -> None:
        for gone in [request for request in self._open if request not in requests]:
            fd = self._open.pop(gone)
            if fd is not None:
                os.close(fd)


def _open_rows(state: Any) -> int | None:
    extra = (state.sampling_params.extra_args if state.sampling_params is not None else None) or {}
    if ROWS_ARGUMENT not in extra:
        return None
    try:
        return open_memory(extra[ROWS_ARGUMENT], os.O_WRONLY)
    except OSError as error:
        log.info("nobody reads the rows of request %s any more: %s", state.req_id, error)
        return None
