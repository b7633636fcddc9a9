"""Writes hidden rows for requests: the normed output of the last layer, row by row, as it is computed.

The output of the model's forward pass is read where the model runner receives it. Unlike a hook on a layer, this also
works if the layers are compiled or replayed as a CUDA graph.

Tokens that a request finds in the prefix cache are not computed, so their rows are kept with their blocks. Only
requests for rows write there. Their blocks have a separate salt, so that all blocks they find have rows.
"""

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from omnibus_llm.vllm.protocol import Place, open_memory
from omnibus_llm.vllm.v032.kv_connector import LOAD_ARGUMENT, extra_arguments

log = logging.getLogger(__name__)

#: Key in ``extra_args`` of a request for rows: their place, or None to keep them only.
ROWS_ARGUMENT = "omnibus_rows"


class BlockRows:
    """The hidden rows of the tokens in a KV cache's blocks.

    They are in the host's memory. ``blocks`` are those of the cache, of ``tokens`` tokens each. Memory is allocated as
    it is written to, in the model's dtype: one row of the model's width for a token of requests for rows.
    """

    def __init__(self, blocks: int, tokens: int) -> None:
        self._blocks = blocks
        self._tokens = tokens
        self._rows = torch.empty(0)

    def write(self, blocks: Sequence[int], first: int, rows: torch.Tensor) -> None:
        """Keep ``rows`` [n, H] from position ``first`` of a sequence in ``blocks``."""
        if not len(self._rows):
            self._rows = torch.empty(self._blocks * self._tokens, rows.shape[1], dtype=rows.dtype)
        self._rows[self._slots(blocks, first, first + len(rows))] = rows

    def read(self, blocks: Sequence[int], count: int) -> torch.Tensor:
        """Return the first rows [count, H] of a sequence in ``blocks``; they were written before."""
        return self._rows[self._slots(blocks, 0, count)]

    def _slots(self, blocks: Sequence[int], first: int, end: int) -> torch.Tensor:
        places = torch.arange(first, end)
        held_blocks = torch.tensor(blocks[first // self._tokens : -(-end // self._tokens)])
        return held_blocks[places // self._tokens - first // self._tokens] * self._tokens + places % self._tokens


class RowOwner(NamedTuple):
    """The receiver of a request's rows, if ``wanted``, and its descriptor."""

    wanted: bool
    fd: int | None


class HiddenRowWriter:
    """Writes the rows of a batch into the memory of their owners.

    Each is written at its position. ``block_rows`` has the rows of the prefix cache; it is None if the cache is not
    read.
    """

    def __init__(self, runner: Any, forward: Callable[..., Any], block_rows: BlockRows | None) -> None:
        self._runner = runner
        self._forward = forward
        self._kept = block_rows
        self._owners: dict[str, RowOwner] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        output = self._forward(*args, **kwargs)
        if isinstance(output, torch.Tensor):
            self._write_batch(output)
        return output

    def _write_batch(self, hidden: torch.Tensor) -> None:
        batch, requests = self._runner.input_batch, self._runner.requests
        self._close_finished(requests)
        starts, writes = self._runner.query_start_loc.np, []
        for index, request in enumerate(batch.req_ids):
            begins = request not in self._owners
            owner = self._find_owner(request, requests[request])
            if not owner.wanted:
                continue
            first, blocks = int(batch.num_computed_tokens_cpu[index]), requests[request].block_ids[0]
            rows = hidden[int(starts[index]) : int(starts[index + 1])].cpu()
            _write_rows(owner.fd, first, rows)
            if self._kept is not None:
                self._kept.write(blocks, first, rows)
                if begins and first and LOAD_ARGUMENT not in extra_arguments(requests[request].sampling_params):
                    writes.append((owner.fd, blocks, first))
        # Last, because a request may start with blocks that another one computes in this very step.
        for fd, blocks, count in writes:
            if fd is not None and self._kept is not None:
                _write_rows(fd, 0, self._kept.read(blocks, count))

    def _find_owner(self, request: str, state: Any) -> RowOwner:
        if request not in self._owners:
            extra = extra_arguments(state.sampling_params)
            place = extra.get(ROWS_ARGUMENT)
            fd = None if place is None else _open_rows(request, place)
            self._owners[request] = RowOwner(ROWS_ARGUMENT in extra, fd)
        return self._owners[request]

    def _close_finished(self, requests: Any) -> None:
        for finished_request in [request for request in self._owners if request not in requests]:
            fd = self._owners.pop(finished_request).fd
            if fd is not None:
                os.close(fd)


def _write_rows(fd: int | None, first: int, rows: torch.Tensor) -> None:
    """Write ``rows`` [n, H] as float32 from position ``first``; does nothing without ``fd``."""
    if fd is None:
        return
    words = rows.float().contiguous()
    os.pwrite(fd, words.numpy().data.cast("B"), first * words.shape[1] * words.element_size())


def _open_rows(request: str, place: Place) -> int | None:
    try:
        return open_memory(place, os.O_WRONLY)
    except OSError as error:
        log.info("the receiver of the rows of request %s is gone: %s", request, error)
        return None
