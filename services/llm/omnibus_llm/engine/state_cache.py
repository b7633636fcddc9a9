"""The slot cache of models whose layers keep states of a fixed size: convolutions, linear attention, Mamba."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer, LinearAttentionCacheLayerMixin, LinearAttentionLayer

from omnibus.errors import Fatal
from omnibus_llm.engine.slot_cache import Layers, SlotCache
from omnibus_models.attention import Attention

#: Attributes of the library's layers that hold states by number.
_STATES = ("conv_states", "recurrent_states")


class _LayerStates(NamedTuple):
    """Keys and values [heads, T, head_dim] of one sequence in one layer, and its states by attribute and number."""

    keys: Tensor | None
    values: Tensor | None
    states: dict[tuple[str, int], Tensor]


class StateCache(SlotCache):
    """Slots that also hold states. A pass works on copies, so that it can be repeated until the slots advance."""

    def __init__(self, slots: int, context: int) -> None:
        super().__init__(slots, context)
        self._places: dict[int, int] = {}  # of layers with keys and values in the lists of tensors
        self._states: list[dict[tuple[str, int], Tensor]] = []  # by layer: [slots, ...]

    def filled_layers(self, cache: Cache, attention: Attention | None) -> Any:
        """Return the ``_LayerStates`` of the one sequence in ``cache``, without a copy."""
        return [_read_layer(layer) for layer in cache.layers]

    def insert(self, layers: Any) -> int:
        """See ``SlotCache``; ``layers`` are from ``filled_layers``. The caller sets ``lengths``."""
        if not self._places:
            attending_layers = [index for index, layer in enumerate(layers) if layer.keys is not None]
            self._places = {index: place for place, index in enumerate(attending_layers)}
        if not self._states:
            self._states = [
                {name: state.new_zeros((self.slots, *state.shape)) for name, state in layer.states.items()}
                for layer in layers
            ]
        for stored, layer in zip(self._states, layers, strict=True):
            for name, state in layer.states.items():
                stored[name][len(self.lengths)] = state
        attended = [(layer.keys, layer.values) for layer in layers if layer.keys is not None]
        if attended:
            return super().insert(attended)
        self.lengths.append(0)
        return len(self.lengths) - 1

    def remove(self, slot: int, wipe: bool = False) -> None:
        """See ``SlotCache``."""
        last = len(self.lengths) - 1
        for state in (state for stored in self._states for state in stored.values()):
            state[slot] = 0.0 if slot == last else state[last]
        super().remove(slot, wipe)

    def begin_pass(self, slots: Sequence[int]) -> None:
        """See ``SlotCache``."""
        self._choose_rows(slots, self._all_tensors()[0].device)
        self.layers = [self._step_layer(stored) for stored in self._states]

    def advance_slots(self, slots: Sequence[int]) -> None:
        """See ``SlotCache``."""
        for stored, layer in zip(self._states, self.layers, strict=True):
            for (attribute, number), state in stored.items():
                state[self._rows] = getattr(layer, attribute)[number]
        super().advance_slots(slots)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """See ``SlotCache``."""
        return super().update(key_states, value_states, self._places[layer_idx], *args, **kwargs)

    def pack(self, layers: Layers) -> tuple[dict[str, Any], np.ndarray]:
        """Raise ``Fatal``: states stay where they are."""
        raise Fatal("this model's states cannot be sent to another executor; declare the option L instead of P and D")

    def _step_layer(self, stored: dict[tuple[str, int], Tensor]) -> Any:
        """Return the library's layer with copies of the states of this pass."""
        if not stored:
            return DynamicLayer()
        layer = LinearAttentionLayer(1 + max(number for _, number in stored))
        for (attribute, number), state in stored.items():
            getattr(layer, attribute)[number] = state[self._rows].clone()
            getattr(layer, f"is_{attribute}_initialized")[number] = True
            layer.has_previous_state[number] = True
            if attribute == "conv_states":
                layer.conv_kernel_size[number] = state.shape[-1]
        return layer

    def _all_tensors(self) -> list[Tensor]:
        return [*self._keys, *(state for stored in self._states for state in stored.values())]


def _read_layer(layer: Any) -> _LayerStates:
    states = {}
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        states = {
            (attribute, number): state[0]
            for attribute in _STATES
            for number, state in getattr(layer, attribute).items()
            if state is not None
        }
    keys = getattr(layer, "keys", None)
    if not isinstance(keys, Tensor) or not keys.numel():
        return _LayerStates(None, None, states)
    return _LayerStates(keys[0], layer.values[0], states)
