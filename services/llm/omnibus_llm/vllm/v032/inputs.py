"""Prompts as vLLM's processors make them, from ids and positions only.

They have no pixels and no samples.
"""

from collections import defaultdict
from typing import Any
from uuid import uuid4

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

from omnibus.errors import StageFailed
from omnibus_llm.vllm.protocol import Generation, Positions
from omnibus_llm.vllm.v032.qwen3_vl import DEEP

#: Names under which the first media item of a prompt carries the positions of all of it.
POSITIONS, DELTA = "omnibus_positions", "omnibus_delta"
_REMEDY = "declare omnibus_engines:transformers for it"


def engine_input(generation: Generation) -> EngineInput:
    """Return vLLM's input for ``generation``."""
    if generation.takes is not None:
        # Its ids are placeholders, so no other request may find its blocks by them.
        return tokens_input(list(generation.ids), cache_salt=uuid4().hex)
    # Blocks of other requests have no rows for a talker.
    salt = f"spoken {generation.cache_salt}" if generation.spoken else generation.cache_salt or None
    if not generation.media:
        return tokens_input(list(generation.ids), cache_salt=salt)
    items: dict[str, list[MultiModalKwargsItem]] = defaultdict(list)
    keys: dict[str, list[str]] = defaultdict(list)
    places: dict[str, list[PlaceholderRange]] = defaultdict(list)
    for index, medium in enumerate(generation.media):
        items[medium.modality].append(_kwargs_item(None if index else generation.positions))
        keys[medium.modality].append(medium.key)
        places[medium.modality].append(PlaceholderRange(offset=medium.start, length=medium.shape[0]))
    return mm_input(list(generation.ids), MultiModalKwargsItems(items), keys, places, cache_salt=salt)


def _kwargs_item(positions: Positions | None) -> MultiModalKwargsItem:
    if positions is None:
        return MultiModalKwargsItem({})
    field = MultiModalBatchedField(keep_on_cpu=True)
    elements = {POSITIONS: positions.prompt, DELTA: torch.tensor(positions.delta)}
    return MultiModalKwargsItem({name: MultiModalFieldElem(value, field) for name, value in elements.items()})


def require_inputs(generation: Generation, config: Any) -> None:
    """Raise ``StageFailed`` for positions or rows that vLLM's class for this model, of ``config``, would not take.

    It would ignore the positions, or die.
    """
    positions = generation.positions
    if positions is not None and not config.uses_mrope:
        in_line = torch.arange(positions.prompt.shape[1])
        if positions.delta or not (positions.prompt == in_line).all():
            raise StageFailed(f"vLLM counts the positions of this model as in text; {_REMEDY}")
    widths = {medium.shape[1] for medium in generation.media}
    if widths - {config.get_inputs_embeds_size()} and DEEP.isdisjoint(config.architectures):
        raise StageFailed(f"vLLM does not take rows of this model for single layers; {_REMEDY}")
