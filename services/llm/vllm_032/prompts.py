"""A prompt as vLLM's processors would have made it, from ids and meta data alone: no pixels, no samples."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from vllm.inputs import EngineInput
from vllm.inputs.engine import mm_input, tokens_input
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    PlaceholderRange,
)

from services.llm.vllm.port import Generation

#: Of each modality what vLLM counts positions from.
_FIELDS: dict[str, Mapping[str, Callable[[Mapping[str, Any]], torch.Tensor]]] = {
    "image": {"image_grid_thw": lambda meta: torch.tensor(meta["grid_thw"])},
    "video": {
        "video_grid_thw": lambda meta: torch.tensor(meta["grid_thw"]),
        "second_per_grid_ts": lambda meta: torch.tensor(meta["second_per_grid"], dtype=torch.float32),
    },
    "audio": {"audio_feature_lengths": lambda meta: torch.tensor(meta["audio_len"])},
}


def engine_input(asked: Generation) -> EngineInput:
    """The input of ``asked``."""
    if not asked.media:
        return tokens_input(list(asked.ids))
    items: dict[str, list[MultiModalKwargsItem]] = defaultdict(list)
    keys: dict[str, list[str]] = defaultdict(list)
    places: dict[str, list[PlaceholderRange]] = defaultdict(list)
    for medium in asked.media:
        kind = medium.meta["modality"]
        items[kind].append(_item(kind, medium.meta))
        keys[kind].append(medium.key)
        places[kind].append(PlaceholderRange(offset=medium.start, length=medium.shape[0]))
    return mm_input(list(asked.ids), MultiModalKwargsItems(items), keys, places)


def _item(kind: str, meta: Mapping[str, Any]) -> MultiModalKwargsItem:
    field = MultiModalBatchedField(keep_on_cpu=True)
    return MultiModalKwargsItem({key: MultiModalFieldElem(make(meta), field) for key, make in _FIELDS[kind].items()})
