"""Outputs of encoders of transformers as one matrix, and back.

A language model reads ``pooler_output``, and sometimes more tensors with as many rows, such as those that Qwen3-VL adds
to its first layers. Of one media item they become a matrix [n, W], with the rows of ``pooler_output`` first, and a
*form*: the shapes of its parts, as small JSON.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: Fields of an encoder's output that language models do not read.
_UNREAD = frozenset({"last_hidden_state", "hidden_states", "attentions"})
#: The field with the rows; "" for an encoder that returns them without fields.
_MAIN, _BARE = "pooler_output", ""


class MediaRows(NamedTuple):
    """The rows [n, W] of one item, and their form."""

    rows: Tensor
    form: Mapping[str, Any]


class EncoderOutput(dict[str, Any]):
    """Fields of an encoder's output, as attributes as well; a missing one is None."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


def pack_output(output: Any, marks_padding: bool = False) -> MediaRows:
    """Return the rows of ``output``, what an encoder of transformers returned for one item.

    Its mask may mark padding instead of rows.

    Fields with another number of rows follow below; they are the same for all items (Ovis2's marks of images).
    """
    fields = output if isinstance(output, Mapping) else {_BARE: output}
    fields, keys = _split_keys(fields)
    kept = [name for name in (_MAIN, _BARE) if fields.get(name) is not None]
    main = next(iter([*kept, *(name for name in fields if name not in _UNREAD), *fields]))
    mask = _find_mask(fields, fields[main])
    if mask:
        fields = {**fields, main: fields[main][fields[mask].bool() ^ marks_padding][None]}
    names = [main, *sorted(name for name in fields if name not in {main, *_UNREAD} and _has_rows(fields[name]))]
    columns: list[Tensor] = []
    below: list[Tensor] = []
    form: dict[str, Any] = {}
    for name in names:
        value = fields[name]
        by_layer = name in keys or (name != main and not isinstance(value, Tensor))
        packed = [_pack_column(each) for each in (value if by_layer else [value])]
        is_below = bool(columns) and len(packed[0][0]) != len(columns[0])
        (below if is_below else columns).extend(column for column, _ in packed)
        form[name] = {"layers": by_layer, "below": is_below, "columns": [shapes for _, shapes in packed]}
        if name in keys:
            form[name]["keys"] = keys[name]
    if mask:
        form[main] |= {"mask": mask, "padding": marks_padding}
    rows = torch.cat(columns, dim=-1)
    return MediaRows(torch.cat([rows, *(_widen(each, rows.shape[1]) for each in below)]), form)


def split_output(output: Any, sizes: Sequence[Sequence[int]]) -> list[Any]:
    """Return the output for each item of a batch.

    ``sizes`` are possible numbers of parts of the items, one of which has the sum of each field's parts. Raises
    ``ValueError`` if none has.
    """
    fields = output if isinstance(output, Mapping) else {_BARE: output}
    items: list[dict[str, Any]] = [{} for _ in sizes[0]]
    for name, value in fields.items():
        if name in _UNREAD or not _has_rows(value):
            continue
        by_layer = name not in (_MAIN, _BARE) and not isinstance(value, Tensor)
        layers = [_split_parts(layer, sizes) for layer in (value if by_layer else [value])]
        for item, *parts in zip(items, *layers, strict=True):
            item[name] = parts if by_layer else parts[0]
    return [item.get(_BARE, item) for item in items]


def _split_parts(value: Any, sizes: Sequence[Sequence[int]]) -> list[Any]:
    counts = next((counts for counts in sizes if sum(counts) == len(value)), None)
    if counts is None:
        raise ValueError(f"{len(value)} rows or lists of rows are not those of {len(sizes[0])} items")
    ends = [*accumulate(counts)]
    return [value[end - count : end] for end, count in zip(ends, counts, strict=True)]


def join_items(items: Sequence[MediaRows]) -> Any:
    """Return the encoder's output for all ``items`` of one modality in order.

    Raises ``ValueError`` if their forms do not fit together, or the rows of one do not fit its form.
    """
    outputs = [_unpack_item(item) for item in items]
    if len({tuple(output) for output in outputs}) > 1:
        raise ValueError("items of one encoder have different forms")
    joined = EncoderOutput()
    for name, field in items[0].form.items():
        values = [output[name] for output in outputs]
        if field["below"]:
            joined[name] = values[0]
            continue
        joined[name] = [_join(layer) for layer in zip(*values, strict=True)] if field["layers"] else _join(values)
        if "keys" in field:
            joined[name] = [*zip(field["keys"], joined[name], strict=True)]
        if "mask" in field:
            rows = joined[name]
            joined[field["mask"]] = torch.full(rows.shape[:2], not field["padding"], device=rows.device)
    return joined.get(_BARE, joined)


def _split_keys(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Return ``fields`` without the numbers of layers, and these numbers."""
    paired = {
        name: value
        for name, value in fields.items()
        if isinstance(value, list) and value and isinstance(value[0], tuple) and isinstance(value[0][0], int)
    }
    keys = {name: [number for number, _ in value] for name, value in paired.items()}
    return {**fields, **{name: [rows for _, rows in value] for name, value in paired.items()}}, keys


def _find_mask(fields: Mapping[str, Any], rows: Any) -> str:
    """Return the name of the field that marks the ``rows`` [B, T, H] that are not padding.

    It is empty if there is none.
    """
    if not isinstance(rows, Tensor) or rows.dim() != 3:
        return ""
    masks = (name for name, value in fields.items() if isinstance(value, Tensor) and not value.is_floating_point())
    return next((name for name in masks if fields[name].shape == rows.shape[:2]), "")


def form_width(form: Mapping[str, Any]) -> int:
    """Return the width of the rows of a ``form``."""
    beside = (field for field in form.values() if not field["below"])
    return sum(int(column["width"]) for field in beside for column in field["columns"])


def _has_rows(value: Any) -> bool:
    first = value[0] if isinstance(value, list | tuple) and value else value
    first = first[0] if isinstance(first, list | tuple) and first else first
    return isinstance(first, Tensor) and first.is_floating_point() and first.dim() > 1


def _widen(rows: Tensor, width: int) -> Tensor:
    """Return ``rows`` padded with zeros. Raises ``ValueError`` if they are wider."""
    if rows.shape[1] > width:
        raise ValueError(f"{len(rows)} rows are {rows.shape[1]} wide, more than the {width} of the item's rows")
    return torch.nn.functional.pad(rows, (0, width - rows.shape[1]))


def _pack_column(value: Any) -> tuple[Tensor, dict[str, Any]]:
    parts = [value] if isinstance(value, Tensor) else list(value)
    shapes = {
        "listed": not isinstance(value, Tensor),
        "width": parts[0].shape[-1],
        "parts": [list(part.shape[:-1]) for part in parts],
    }
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts]), shapes


def _unpack_item(item: MediaRows) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    start = top = 0
    for name, field in item.form.items():
        columns = []
        for column in field["columns"]:
            count = sum(torch.Size(shape).numel() for shape in column["parts"])
            if field["below"]:
                rows, top = item.rows[top : top + count, : column["width"]], top + count
            else:
                rows, top = item.rows[:count, start : start + column["width"]], max(top, count)
                start += column["width"]
            columns.append(_unpack_column(rows, column))
        fields[name] = columns if field["layers"] else columns[0]
    return fields


def _unpack_column(rows: Tensor, column: Mapping[str, Any]) -> Any:
    shapes = [torch.Size(shape) for shape in column["parts"]]
    parts = [
        part.reshape(*shape, rows.shape[-1])
        for part, shape in zip(rows.split([shape.numel() for shape in shapes]), shapes, strict=True)
    ]
    return parts if column["listed"] else parts[0]


def _join(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Tensor):
        padded = len({value.shape[1:] for value in values}) > 1
        return torch.cat(list(values), dim=1 if padded else 0)
    return [part for each in values for part in each]
