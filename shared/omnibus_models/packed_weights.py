"""Weights of language models on a CPU, in the order of a step.

A decode step multiplies a few rows by every weight of the model, so it takes as long as reading the weights. Libraries
read those of ``nn.Linear``, [outputs, inputs], in short pieces of many rows, or reorder them in each step. Here each
layer stores them once in the order of the product:

- float32 heads over a vocabulary: blocks of outputs, [blocks, inputs, width], which one batched product of torch reads
  from start to end.
- bfloat16 on a processor that multiplies it: the order of oneDNN for few rows.

Products are equal to those of the plain layer within rounding. The plain weights are dropped. Those were pages of the
checkpoint's file, which processes share; packed ones belong to each process.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

_WIDTHS = (256, 128)  # outputs of a block, the widest that divides all; 64 otherwise
_LEAST_WIDTH = 64
_LEAST_WEIGHTS = 1 << 16  # of a layer; smaller ones stay in the processor's cache
_LARGE_WEIGHTS = 1 << 24  # of a head over a vocabulary
_ROWS = 8  # of the product that oneDNN chooses its order for


class BlockedLinear(nn.Linear):
    """A linear layer whose weights are ``blocks`` [blocks, inputs, width]; the last block is padded with zeros."""

    blocks: Tensor
    #: A copy of the weights, [outputs, inputs].
    weight = property(lambda self: _join_blocks(self.blocks)[: self.out_features])

    def forward(self, input: Tensor) -> Tensor:
        blocks = self.blocks
        rows = input.reshape(-1, self.in_features)
        products = torch.bmm(rows.expand(blocks.shape[0], -1, -1), blocks).transpose(0, 1)
        output = products.reshape(*input.shape[:-1], -1)
        if output.shape[-1] > self.out_features:
            output = output[..., : self.out_features]
        return output if self.bias is None else output + self.bias


class BlockedEmbedding(nn.Embedding):
    """A table that shares its ``blocks`` with the ``BlockedLinear`` that computes logits."""

    blocks: Tensor
    #: A copy of the table, [ids, width of rows].
    weight = property(lambda self: _join_blocks(self.blocks)[: self.num_embeddings])

    def forward(self, input: Tensor) -> Tensor:
        width = self.blocks.shape[-1]
        return self.blocks[input // width, :, input % width]


class OneDnnLinear(nn.Linear):
    """A linear layer whose weights are ``packed`` in the order of oneDNN."""

    packed: Tensor
    #: A copy of the weights, [outputs, inputs].
    weight = property(lambda self: self.packed.to_dense())

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = torch.ops.mkldnn._linear_pointwise(input, self.packed, self.bias, "none", [], "")
        return output


#: Classes of linear layers after ``pack_weights``.
PACKED_LINEAR = (BlockedLinear, OneDnnLinear)


def pack_weights(module: nn.Module) -> None:
    """Pack the weights of large linear layers of ``module``.

    Does nothing on a GPU. Layers with hooks, and those that share their weights, stay plain. A float32 head may share
    those of embeddings.
    """
    owners: dict[Tensor, list[nn.Module]] = {}  # tensors are equal as keys if they are the same object
    for part in module.modules():
        for parameter in part._parameters.values():
            if parameter is not None:
                owners.setdefault(parameter, []).append(part)
    while owners:  # each plain weight is freed before the next one is packed
        _pack_weight(*owners.popitem())


def _pack_weight(weight: Tensor, parts: list[nn.Module]) -> None:
    """Pack ``weight`` of a linear layer, and perhaps of an embedding.

    ``parts`` are all modules that have it; with others among them, it stays plain.
    """
    kinds = {type(part): part for part in parts if not has_hooks(part)}
    linear, table = kinds.get(nn.Linear), kinds.get(nn.Embedding)
    if linear is None or linear._parameters["weight"] is not weight or len(parts) != 1 + (table is not None):
        return
    if weight.device.type != "cpu" or weight.numel() < _LEAST_WEIGHTS:
        return
    if weight.dtype == torch.float32 and _packs_float32(weight, table):
        blocks = nn.Parameter(_cut_blocks(weight), requires_grad=False)
        replace_weight(linear, BlockedLinear, blocks=blocks)
        if table is not None:
            replace_weight(table, BlockedEmbedding, blocks=blocks)
    elif weight.dtype == torch.bfloat16 and table is None and _packs_bfloat16():
        reordered_weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        replace_weight(linear, OneDnnLinear, packed=nn.Parameter(reordered_weight, requires_grad=False))


def has_hooks(part: nn.Module) -> bool:
    """Return True if others change what ``part`` gets or returns."""
    return bool(part._forward_hooks or part._forward_pre_hooks)


def replace_weight(part: nn.Module, kind: type[nn.Module], **stored: nn.Parameter) -> None:
    """Make ``part`` one of ``kind``, with ``stored`` parameters instead of its weight."""
    # In place, because heads and copies of models refer to the same layers.
    del part._parameters["weight"]
    part.__class__ = kind
    for name, parameter in stored.items():
        part.register_parameter(name, parameter)


def _cut_blocks(weight: Tensor) -> Tensor:
    """Return ``weight`` [outputs, inputs] as contiguous [blocks, inputs, width]."""
    width = next((width for width in _WIDTHS if len(weight) % width == 0), _LEAST_WIDTH)
    padded = functional.pad(weight, (0, 0, 0, -len(weight) % width))
    return padded.view(-1, width, weight.shape[1]).transpose(1, 2).contiguous()


def _join_blocks(blocks: Tensor) -> Tensor:
    """Return the weights, [outputs, inputs], of ``blocks`` with their padding."""
    return blocks.transpose(1, 2).reshape(-1, blocks.shape[1])


def _packs_float32(weight: Tensor, table: nn.Module | None) -> bool:
    """Return whether blocks are faster: with MKL, for weights far larger than the processor's cache.

    Other layers would gain with eight sequences in a step, and lose with one, and for prompts.
    """
    is_plain_table = getattr(table, "max_norm", None) is None
    return torch.backends.mkl.is_available() and is_plain_table and weight.numel() >= _LARGE_WEIGHTS


def _packs_bfloat16() -> bool:
    supported: bool = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return supported
