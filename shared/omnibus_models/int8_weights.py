"""Weights of language models on a CPU as 8-bit integers.

A decode step takes as long as reading the weights, and integers are a quarter of float32. Each output has a scale, and
so has each row of activations in each pass (SmoothQuant, section 2: per-channel weights, per-token dynamic
activations). There 8 bits are too few for activations: a token has a few that are far larger than the others. Here a
row is two rows of integers, its digits to base 254. Both take part in one product, so that weights are read once.

Sums of products are exact: the result of a row does not depend on the rows beside it.
"""

from functools import lru_cache

import torch
from torch import Tensor, nn

from omnibus.errors import BadRequest
from omnibus_models.packed_weights import has_hooks, replace_weight

_LARGEST = 127  # of an integer; -128 is not used, so that both signs are alike
_BASE = 2 * _LARGEST  # a remainder is at most half of a step, and its digit at most _LARGEST
_LEAST_WEIGHTS = 1 << 16  # of a layer; the scales of smaller ones take longer than their weights
_LEAST_SCALE = 1e-12  # of a row of zeros
#: Layers that choose experts: a small error can change the choice.
_ROUTERS = frozenset({"gate", "router"})


class Digits:
    """Digits of the rows that a pass multiplies next. Layers of one parent get the same rows one after another."""

    def __init__(self) -> None:
        self._input: Tensor | None = None
        self._first: Int8Linear
        self._digits: tuple[Tensor, Tensor]

    def of(self, input: Tensor, layer: "Int8Linear") -> tuple[Tensor, Tensor]:
        """Return the digits of ``input`` [..., inputs] for ``layer``, and the value of a low 1 in each row, [n, 1].

        They are int8 [2 n, inputs] with the high ones first.
        """
        # The same layer gets the same tensor again only if its values have changed.
        if input is not self._input or layer is self._first or layer.parent != self._first.parent:
            self._digits, self._input, self._first = _split_rows(input), input, layer
        return self._digits


class Int8Linear(nn.Linear):
    """A linear layer with weights ``integers`` [outputs, inputs] int8 times ``scales`` [outputs] float32."""

    integers: Tensor
    scales: Tensor
    digits: Digits
    parent: str
    #: A copy of the weights, [outputs, inputs] float32, as they are after rounding.
    weight = property(lambda self: self.integers * self.scales[:, None])

    def forward(self, input: Tensor) -> Tensor:
        digits, units = self.digits.of(input, self)
        high, low = torch._int_mm(digits, self.integers.t()).float().chunk(2)
        output = low.add_(high, alpha=_BASE).mul_(units)
        output = output.mul_(self.scales) if self.bias is None else torch.addcmul(self.bias, output, self.scales)
        return output.view(*input.shape[:-1], self.out_features)


def quantise_weights(module: nn.Module) -> None:
    """Store the float32 weights of large linear layers of ``module`` as integers.

    Layers with hooks, and those that choose experts, stay as they are, as do embeddings that share their weights with a
    head. Raises ``BadRequest`` on a device or a processor whose products of integers are not exact.
    """
    if any(parameter.device.type != "cpu" for parameter in module.parameters()) or not _multiplies_exactly():
        raise BadRequest("this device has no exact products of 8-bit integers: choose another dtype than int8")
    digits = Digits()
    for path, layer in list(module.named_modules()):
        parent, _, name = path.rpartition(".")
        if type(layer) is nn.Linear and name not in _ROUTERS and _is_quantisable(layer):
            _quantise_layer(layer)
            vars(layer).update(digits=digits, parent=parent)


def _is_quantisable(layer: nn.Linear) -> bool:
    weight = layer.weight
    return weight.dtype == torch.float32 and weight.numel() >= _LEAST_WEIGHTS and not has_hooks(layer)


def _quantise_layer(layer: nn.Linear) -> None:
    weight = layer.weight.detach()
    scales = _row_scales(weight)
    integers = nn.Parameter((weight / scales).round_().to(torch.int8), requires_grad=False)
    # The first parameter has the type of rows.
    replace_weight(layer, Int8Linear, scales=nn.Parameter(scales.squeeze(1), requires_grad=False), integers=integers)


def _split_rows(input: Tensor) -> tuple[Tensor, Tensor]:
    rows = input.reshape(-1, input.shape[-1])
    units = _row_scales(rows).div_(_BASE)
    rows = rows / units
    high = (rows / _BASE).round_()
    low = rows.sub_(high, alpha=_BASE).round_()
    return torch.cat((high, low)).to(torch.int8), units


def _row_scales(rows: Tensor) -> Tensor:
    """Return the value of 1 in the integers of each of ``rows`` [n, inputs]: [n, 1]."""
    return rows.abs().amax(1, keepdim=True).clamp_(min=_LEAST_SCALE).div_(_LARGEST)


@lru_cache(1)
def _multiplies_exactly() -> bool:
    """Return whether sums of the largest products are exact. Some processors add pairs of them in 16 bits."""
    row = torch.full((1, 256), _LARGEST, dtype=torch.int8)
    return torch._int_mm(row, row.t()).item() == 256 * _LARGEST**2 == -torch._int_mm(row, -row.t()).item()
