"""Weights of a language model on a CPU, in the order in which a step reads them.

A decode step multiplies a few rows by every weight of the model, so it takes as long as reading the weights. Libraries
read those of ``nn.Linear``, [outputs, inputs], in short pieces of many rows, or reorder them in each step. Here each
layer stores them once in the order of the product:

- float32: blocks of outputs, [blocks, inputs, width], which one batched product of torch reads from start to end.
- bfloat16 on a processor that multiplies it: the order of oneDNN for few rows.

Products are equal to those of the plain layer within rounding. The plain weights are dropped, so memory stays the same.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

_WIDTHS = (256, 128)  # outputs of a block, the widest that divides all; 64 otherwise
_LEAST_WIDTH = 64
_LEAST_WEIGHTS = 1 << 16  # of a layer; smaller ones stay in the processor's cache
_ROWS = 8  # of the product that oneDNN chooses its order for


class BlockedLinear(nn.Linear):
    """A linear layer whose weights are ``blocks`` [blocks, inputs, width]; the last block is padded with zeros."""

    blocks: Tensor

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """A copy of the weights, [outputs, inputs]."""
        return self.blocks.transpose(1, 2).reshape(-1, self.in_features)[: self.out_features]

    def forward(self, input: Tensor) -> Tensor:
        rows = input.reshape(-1, self.in_features)
        products = torch.bmm(rows.expand(len(self.blocks), *rows.shape), self.blocks)
        output = products.transpose(0, 1).reshape(len(rows), -1)[:, : self.out_features]
        if self.bias is not None:
            output = output + self.bias
        return output.view(*input.shape[:-1], self.out_features)


class BlockedEmbedding(nn.Embedding):
    """A table that shares its ``blocks`` with the ``BlockedLinear`` that computes logits."""

    blocks: Tensor

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """A copy of the table, [ids, width of rows]."""
        return self.blocks.transpose(1, 2).reshape(-1, self.embedding_dim)[: self.num_embeddings]

    def forward(self, input: Tensor) -> Tensor:
        width = self.blocks.shape[-1]
        return self.blocks[input // width, :, input % width]


class OneDnnLinear(nn.Linear):
    """A linear layer whose weights are ``packed`` in the order of oneDNN."""

    packed: Tensor

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """A copy of the weights, [outputs, inputs]."""
        return self.packed.to_dense()

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = torch.ops.mkldnn._linear_pointwise(input, self.packed, self.bias, "none", [], "")
        return output


#: Classes of linear layers after ``pack_weights``.
PACKED_LINEAR = (BlockedLinear, OneDnnLinear)


def pack_weights(module: nn.Module) -> None:
    """Pack the weights of large linear layers of ``module``, if they are on a CPU.

    Layers with hooks, and those that share their weights, stay plain, except a float32 head that shares the table of
    embeddings.
    """
    owners: dict[int, list[nn.Module]] = {}
    for part in module.modules():
        for parameter in filter(None.__ne__, part._parameters.values()):
            owners.setdefault(id(parameter), []).append(part)
    for parts in owners.values():
        _pack_parts(parts)


def _pack_parts(parts: list[nn.Module]) -> None:
    """Pack the weights that ``parts`` share, or nothing."""
    kinds = {type(part): part for part in parts if not part._forward_hooks and not part._forward_pre_hooks}
    linear, table = kinds.pop(nn.Linear, None), kinds.pop(nn.Embedding, None)
    if not isinstance(linear, nn.Linear) or len(parts) != 1 + (table is not None):
        return
    weight = linear._parameters["weight"]
    if weight is None or weight.device.type != "cpu" or weight.numel() < _LEAST_WEIGHTS:
        return
    if weight.dtype == torch.float32 and torch.backends.mkl.is_available() and (table is None or _is_plain(table)):
        blocks = nn.Parameter(_cut_blocks(weight), requires_grad=False)
        for part, kind in ((linear, BlockedLinear), (table, BlockedEmbedding)):
            if part is not None:
                _replace_weight(part, kind, "blocks", blocks)
    elif weight.dtype == torch.bfloat16 and table is None and _packs_bfloat16():
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        _replace_weight(linear, OneDnnLinear, "packed", nn.Parameter(packed, requires_grad=False))


def _replace_weight(part: nn.Module, kind: type[nn.Module], name: str, stored: nn.Parameter) -> None:
    # In place, because heads and copies of models refer to the same layers.
    del part._parameters["weight"]
    part.__class__ = kind
    part.register_parameter(name, stored)


def _cut_blocks(weight: Tensor) -> Tensor:
    """Return ``weight`` [outputs, inputs] as contiguous [blocks, inputs, width]."""
    width = next((width for width in _WIDTHS if len(weight) % width == 0), _LEAST_WIDTH)
    padded = functional.pad(weight, (0, 0, 0, -len(weight) % width))
    return padded.view(-1, width, weight.shape[1]).transpose(1, 2).contiguous()


def _is_plain(table: nn.Module) -> bool:
    return isinstance(table, nn.Embedding) and table.max_norm is None


def _packs_bfloat16() -> bool:
    supported: bool = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return supported
