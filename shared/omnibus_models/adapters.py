"""LoRA adapters on a decoder: one set of weights, and for each row its adapter or none.

Some are attached before the first pass. Others may take a free number between two passes.

Adapted linear layers contain the matrices of all adapters, [adapters, inputs, rank] and [adapters, rank, outputs],
padded with zeros to the largest rank. A pass specifies the adapter of each row. Rows without one are unchanged, and a
pass without any computes the same as the plain layers. Method: LoRA (Hu et al. 2021), batches of several adapters as in
Punica (Chen et al. 2023).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from omnibus.checkpoints.adapters import DOWN_SUFFIX, PREFIX, UP_SUFFIX, LoraAdapter, read_adapter
from omnibus.errors import BadRequest
from omnibus_models.int8_weights import Int8Linear
from omnibus_models.packed_weights import PACKED_LINEAR

#: Parts of a path that may enclose a language model's layers in the trained model, for all classes.
_WRAPPERS = frozenset({"model", "language_model", "text_model", "thinker", "decoder"})
#: Parts of a path below which a layer gets only some rows, in another order.
_ROUTED = frozenset({"experts"})


class AdaptedRows(NamedTuple):
    """Rows of a pass with an adapter: their ``places`` among ``total`` rows, and their adapters' ``numbers``."""

    total: int
    places: Tensor
    numbers: Tensor


class PassAdapters:
    """Adapters of the current forward pass: ``rows`` is None if none of its rows has one."""

    def __init__(self) -> None:
        self.rows: AdaptedRows | None = None


class AdaptedLinear(nn.Module):
    """The linear layer ``base``, and adapters' ``down`` and ``up``."""

    down: Tensor  # [adapters, inputs, rank]
    up: Tensor  # [adapters, rank, outputs], scaled

    def __init__(self, base: nn.Linear, current: PassAdapters, count: int, rank: int) -> None:
        super().__init__()
        self.in_features, self.out_features = base.in_features, base.out_features
        self.base = base
        self._current = current
        weights = next(base.parameters())
        make = partial(torch.zeros, dtype=weights.dtype, device=weights.device)
        self.register_buffer("down", make(count, base.in_features, rank), persistent=False)
        self.register_buffer("up", make(count, rank, base.out_features), persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.base(input)
        rows = self._current.rows
        return output if rows is None else self._add_deltas(input, output, rows)

    def _add_deltas(self, input: Tensor, output: Tensor, rows: AdaptedRows) -> Tensor:
        """Add the adapters' deltas to their rows of ``output``, in place."""
        adapted_input = input.reshape(rows.total, -1, self.in_features)[rows.places]
        delta = torch.bmm(torch.bmm(adapted_input, self.down[rows.numbers]), self.up[rows.numbers])
        output.view(rows.total, -1, self.out_features).index_add_(0, rows.places, delta)
        return output

    def set_adapter(self, number: int, down: Tensor, up: Tensor, scale: float) -> None:
        """Set the matrices of adapter ``number``: ``down`` [rank, inputs] and ``up`` [outputs, rank]."""
        rank = down.shape[0]
        if (more := rank - self.down.shape[2]) > 0:
            self.down = functional.pad(self.down, (0, more))
            self.up = functional.pad(self.up, (0, 0, 0, more))
        self.clear_adapter(number)
        self.down[number, :, :rank] = down.T
        self.up[number, :rank] = up.float().T * scale

    def clear_adapter(self, number: int) -> None:
        """Set the matrices of adapter ``number`` to zero."""
        self.down[number] = 0
        self.up[number] = 0


class Adapters:
    """The adapters of one decoder.

    ``numbers`` has the number of each of ``names``; after these, ``free`` more may be loaded. ``layers`` has the
    adapted layers by path.
    """

    def __init__(self, names: Sequence[str], free: int, device: torch.device) -> None:
        self.numbers = {name: number for number, name in enumerate(names)}
        self.count = len(names) + free
        self.current = PassAdapters()
        self.layers: dict[str, AdaptedLinear] = {}
        self._device = device

    @contextmanager
    def chosen(self, numbers: Sequence[int | None]) -> Iterator[bool]:
        """Set the adapter number, if any, of each row for passes inside.

        Yields whether any row has one.
        """
        places = [place for place, number in enumerate(numbers) if number is not None]
        if places:
            adapter_numbers = [number for number in numbers if number is not None]
            self.current.rows = AdaptedRows(
                len(numbers),
                torch.tensor(places, device=self._device),
                torch.tensor(adapter_numbers, device=self._device),
            )
        try:
            yield bool(places)
        finally:
            self.current.rows = None


def attach_adapters(decoder: Any, directories: Mapping[str, Path], free: int = 0) -> None:
    """Load the adapters of these directories onto ``decoder``, as its ``adapters``.

    ``free`` more may be loaded later. Raises ``BadRequest`` with the name of an adapter that does not fit.
    """
    read = [read_adapter(directory) for directory in directories.values()]
    places = [match_modules(decoder, adapter) for adapter in read]
    adapters = Adapters(list(directories), free, decoder.device)
    rank = max((adapter.rank for adapter in read), default=0)
    for number, (adapter, modules) in enumerate(zip(read, places, strict=True)):
        _set_layers(decoder.backbone, adapters, number, adapter, modules, rank)
    decoder.adapters = adapters


def replace_adapter(decoder: Any, number: int, adapter: LoraAdapter) -> None:
    """Assign ``number`` of the decoder's ``adapters`` to ``adapter``.

    Call it between two passes; no row may use the number. Raises ``BadRequest`` if ``adapter`` does not fit, without
    any change.
    """
    modules = match_modules(decoder, adapter)
    for layer in decoder.adapters.layers.values():
        layer.clear_adapter(number)
    _set_layers(decoder.backbone, decoder.adapters, number, adapter, modules, adapter.rank)


def _set_layers(
    backbone: nn.Module, adapters: Adapters, number: int, adapter: LoraAdapter, modules: Mapping[str, str], rank: int
) -> None:
    """Load an adapter onto the layers ``modules`` for its modules.

    Layers without an adapter so far get room for ``rank``.
    """
    from safetensors import safe_open

    with safe_open(adapter.weights_file, "pt") as weights:
        for module, path in modules.items():
            down, up = (weights.get_tensor(f"{PREFIX}{module}{suffix}") for suffix in (DOWN_SUFFIX, UP_SUFFIX))
            layer = adapters.layers.get(path) or _adapt_layer(backbone, path, adapters, rank)
            layer.set_adapter(number, down.to(layer.down.device), up.to(layer.down.device), adapter.scale)


def _adapt_layer(backbone: nn.Module, path: str, adapters: Adapters, rank: int) -> AdaptedLinear:
    parent, _, last = path.rpartition(".")
    layer = AdaptedLinear(backbone.get_submodule(path), adapters.current, adapters.count, rank)  # type: ignore[arg-type]
    setattr(backbone.get_submodule(parent), last, layer)
    adapters.layers[path] = layer
    return layer


def match_modules(decoder: Any, adapter: LoraAdapter) -> dict[str, str]:
    """Return the path in the decoder's layers of each module of ``adapter``.

    Raises ``BadRequest`` if the decoder takes no adapters, lacks a module, or has one of another shape.
    """
    if getattr(decoder, "crossed", ()):
        raise BadRequest(f"adapter {adapter.directory}: models with cross-attention to images support no LoRA")
    kinds = (nn.Linear, *PACKED_LINEAR, Int8Linear, AdaptedLinear)
    layers = {path: layer for path, layer in decoder.backbone.named_modules() if type(layer) in kinds}
    return {module: _match_module(adapter, module, layers) for module in adapter.modules}


def _match_module(adapter: LoraAdapter, module: str, layers: Mapping[str, Any]) -> str:
    parts = module.split(".")
    while parts and parts[0] in _WRAPPERS:
        parts.pop(0)
    path, (outputs, inputs) = ".".join(parts), adapter.modules[module]
    layer = layers.get(path)
    if layer is None or not _ROUTED.isdisjoint(parts):
        raise BadRequest(
            f"adapter {adapter.directory}: module {module} does not support LoRA (only linear layers of the language "
            "model do, except heads, embeddings, experts and encoders)"
        )
    if (layer.out_features, layer.in_features) != (outputs, inputs):
        raise BadRequest(
            f"adapter {adapter.directory}: {module} has the shape [{outputs}, {inputs}], but this model's layer has "
            f"[{layer.out_features}, {layer.in_features}], so it was trained on another model"
        )
    return path
