"""Passes through the layers of a decoder: operation by operation, recorded on a CPU, or as one CUDA graph.

A step of a language model of 3 billion parameters is 1,500 kernels. Python needs 60 ms to launch them, an H100 7 ms to
run them. A graph is launched at once, but its shapes are fixed. So a pass has one of few shapes: all slots up to a
power of two, and all positions up to a power of two. Rows that no sequence needs are computed as well, and discarded.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from omnibus_llm.engine.slot_cache import SlotCache
from omnibus_models.contract import Decoder
from omnibus_models.recorded_calls import CallShape, RecordedCalls

_log = logging.getLogger(__name__)

#: Turns a function into another one that computes and returns the same tensor each time.
Recorder = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]

_LEAST_POSITIONS = 256  # of a graph: attention to fewer costs as much


class PassShape(NamedTuple):
    """Shape of a pass: ``rows`` slots from the first, ``positions`` of each, and the ``width`` of inputs."""

    rows: int
    positions: int
    width: int


class DecodePass:
    """A pass of one new position per slot, operation by operation."""

    def __init__(self, decoder: Decoder, cache: SlotCache) -> None:
        self._decoder = decoder
        self._cache = cache

    def run(self, slots: Sequence[int], inputs: Tensor, positions: Sequence[int]) -> Tensor:
        """Pass ``inputs`` [B, H] at ``positions`` of ``slots`` to hidden [B, H'].

        ``slots`` are in ascending order. Keys and values are written to the cache, whose slots do not advance.
        """
        self._cache.begin_pass(slots)
        return _forward(self._decoder, self._cache, inputs, torch.tensor(positions, device=self._decoder.device))


class RecordedPass(DecodePass):
    """A ``DecodePass`` on a CPU that runs without Python, see ``RecordedCalls``. Bits are those of ``DecodePass``.

    One recording serves all numbers of slots and positions.
    """

    def __init__(self, decoder: Decoder, cache: SlotCache) -> None:
        super().__init__(decoder, cache)
        self.calls = RecordedCalls(decoder.module, self._compute, _find_shape)

    def run(self, slots: Sequence[int], inputs: Tensor, positions: Sequence[int]) -> Tensor:
        self._cache.begin_pass(slots)
        is_whole = len(slots) == slots[-1] + 1
        return self.calls(is_whole, inputs, torch.tensor(positions), *self._cache.pass_tensors())

    def _compute(self, is_whole: bool, inputs: Tensor, positions: Tensor, *tensors: Tensor) -> Tensor:
        with self._cache.use_tensors(is_whole, inputs.shape[0], tensors):
            return _forward(self._decoder, self._cache, inputs, positions)


def _find_shape(is_whole: bool, inputs: Tensor, positions: Tensor, *tensors: Tensor) -> CallShape:
    rows, width = inputs.shape
    # The tracer leaves out axes of length one where rows are written.
    return CallShape((is_whole, rows == 1, width), (rows, len(tensors[2]).bit_length()))


_MAX_PROMPT_TOKENS = 512  # of a recorded prompt: in longer ones, operations take the time


class PromptPass:
    """A pass of the first tokens of a prompt through a decoder on a CPU, see ``RecordedCalls``.

    One recording serves all lengths.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.calls = RecordedCalls(decoder.module, self._compute, _find_prompt_shape)

    def run(self, inputs: Tensor, positions: Tensor) -> tuple[Tensor, DynamicCache]:
        """Pass ``inputs`` [1, T, H] at ``positions`` [axes, 1, T]; return hidden [1, T, H'] and a new cache."""
        cache = DynamicCache()
        if inputs.shape[1] > _MAX_PROMPT_TOKENS:
            return self._decoder.forward(inputs, positions, cache, None), cache
        hidden, *layers = self.calls(None, inputs, positions)
        for number, (keys, values) in enumerate(zip(layers[::2], layers[1::2], strict=True)):
            cache.update(keys, values, number)
        return hidden, cache

    def _compute(self, _: None, inputs: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        cache: Any = DynamicCache()
        hidden = self._decoder.forward(inputs, positions, cache, None)
        return (hidden, *(half for layer in cache.layers for half in (layer.keys, layer.values)))


def _find_prompt_shape(_: None, inputs: Tensor, positions: Tensor) -> CallShape:
    tokens, width = inputs.shape[1:]
    return CallShape((tokens == 1, width), tokens.bit_length())


class FixedPass(DecodePass):
    """A ``DecodePass`` in few shapes, each recorded once with ``record``."""

    def __init__(self, decoder: Decoder, cache: SlotCache, record: Recorder) -> None:
        super().__init__(decoder, cache)
        self._record = record
        self._recorded: dict[PassShape, _FixedStep] = {}
        self._refused = False

    @property
    def shapes(self) -> list[PassShape]:
        """Recorded shapes."""
        return list(self._recorded)

    def run(self, slots: Sequence[int], inputs: Tensor, positions: Sequence[int]) -> Tensor:
        """See ``DecodePass``. If recording fails, the decoder always runs operation by operation."""
        step = None if self._refused else self._find_step(slots, inputs)
        if step is None:
            return super().run(slots, inputs, positions)
        return step.run(slots, inputs, positions)

    def _find_step(self, slots: Sequence[int], inputs: Tensor) -> "_FixedStep | None":
        shape = self._choose_shape(slots, inputs.shape[-1])
        step = self._recorded.get(shape)
        if step is None:
            try:
                step = _FixedStep(self._decoder, self._cache, shape, inputs.dtype, self._record)
            except RuntimeError as error:  # a loop over experts, for example, waits for values from the GPU
                _log.warning("decode steps are not recorded as CUDA graphs: %s", str(error).splitlines()[0])
                self._refused = True
                return None
            self._recorded[shape] = step
        return step

    def _choose_shape(self, slots: Sequence[int], width: int) -> PassShape:
        cache = self._cache
        longest = max(cache.lengths[slot] for slot in slots) + 1
        return PassShape(
            min(_power_of_two(slots[-1] + 1), cache.slots),
            min(max(_power_of_two(longest), _LEAST_POSITIONS), cache.context),
            width,
        )


class _FixedStep:
    """A recorded pass of one shape, with fixed places for its inputs.

    Raises ``RuntimeError`` if the operations cannot be recorded.
    """

    def __init__(
        self, decoder: Decoder, cache: SlotCache, shape: PassShape, dtype: torch.dtype, record: Recorder
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._shape = shape
        self._inputs = torch.zeros(shape.rows, shape.width, dtype=dtype, device=decoder.device)
        self._numbers = torch.zeros(2, shape.rows, dtype=torch.long, device=decoder.device)  # ends, positions
        self._index = torch.arange(shape.rows, device=decoder.device)
        self._place_numbers((), ())  # the first passes write where the next ones will
        self._launch = record(self._compute)

    def run(self, slots: Sequence[int], inputs: Tensor, positions: Sequence[int]) -> Tensor:
        rows = slice(0, len(slots)) if len(slots) == slots[-1] + 1 else torch.tensor(slots, device=self._index.device)
        self._inputs[rows] = inputs
        self._place_numbers(slots, positions)
        return self._launch()[rows].clone()

    def _place_numbers(self, slots: Sequence[int], positions: Sequence[int]) -> None:
        """Set the write positions and rotary positions of all rows.

        Rows without a sequence in this step write where the next position of their slot will be written.
        """
        lengths, last = self._cache.lengths, self._cache.context - 1
        ends = [min(lengths[row], last) if row < len(lengths) else 0 for row in range(self._shape.rows)]
        places = [0] * self._shape.rows
        for slot, position in zip(slots, positions, strict=True):
            places[slot] = position
        self._numbers.copy_(torch.tensor([ends, places]))

    def _compute(self) -> Tensor:
        ends, positions = self._numbers
        self._cache.begin_fixed_pass(self._index, ends, self._shape.positions)
        return _forward(self._decoder, self._cache, self._inputs, positions)


def _forward(decoder: Decoder, cache: SlotCache, inputs: Tensor, positions: Tensor) -> Tensor:
    """Compute one new position for each slot that ``cache`` has chosen: [B, H] at ``positions`` [B] to [B, H']."""
    places = positions[None, :, None].expand(decoder.axes, -1, 1)
    return decoder.forward(inputs[:, None], places, cache, cache.attention_mask())[:, -1]


def record_cuda_graphs() -> Recorder:
    """Return a recorder that records a function as a CUDA graph.

    Each replay returns the same tensor. All graphs share memory for intermediate values: they run one after another, in
    one thread.
    """
    pool = torch.cuda.graph_pool_handle()

    def record(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        compute()  # libraries choose their kernels at the first call of a shape, which cannot be recorded
        graph = torch.cuda.CUDAGraph()
        # An encoder may use the GPU at the same time, in another thread.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            output = compute()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay

    return record


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
