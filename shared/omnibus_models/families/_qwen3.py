"""Base of the Qwen3 families: the encoder also feeds the language model's first layers.

In addition to an item's embedding, the encoder returns one row of H for each of the first ``k`` layers. It is added
to the layer's output ("deepstack"). All rows of an item are packed into the width of its embedding, [n, H * (1 + k)].
Code that moves items, or cuts prompts into shares, does not depend on them.
"""

from abc import ABC
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from omnibus_models.families import _qwen

#: Modalities whose rows have deeper levels.
_DEEP = frozenset({"image", "video"})


class Qwen3DeepstackThinker(_qwen.QwenThinker, ABC):
    """A language model whose first layers get media rows as well."""

    #: Further options of its backbone.
    _more: Mapping[str, Any] = MappingProxyType({})

    @torch.no_grad()
    def forward(self, inputs: Tensor, positions: Tensor, cache: Any, mask: Tensor | None) -> Tensor:
        """Run [B, T, H], or [B, T, H * (1 + k)] with media; return hidden [B, T, H].

        ``positions`` are [3, B, T].
        """
        plain, *levels = inputs.split(self.width, dim=-1)
        deeper: dict[str, Any] = {}
        if levels:
            # The library adds rows at places. Rows of text are zeros, so adding at all places gives the same.
            deeper["visual_pos_masks"] = torch.ones(inputs.shape[:2], dtype=torch.bool, device=inputs.device)
            deeper["deepstack_visual_embeds"] = [level.flatten(0, 1) for level in levels]
        out = self.backbone(
            inputs_embeds=plain,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=cache is not None,
            **deeper,
            **self._more,
        )
        return self._backbone_hidden(out)

    def _backbone_hidden(self, out: Any) -> Tensor:
        """Return [B, T, H'] of the backbone's output."""
        hidden: Tensor = out.last_hidden_state
        return hidden

    @property
    def _level_count(self) -> int:
        module: Any = self.module
        return len(module.config.vision_config.deepstack_visual_indexes)

    def _row_width(self, modality: str) -> int:
        return self.width * (1 + self._level_count) if modality in _DEEP else self.width

    def _widen_inputs(self, inputs: Tensor) -> Tensor:
        return nn.functional.pad(inputs, (0, self.width * self._level_count))


class Qwen3DeepstackVisionEncoder(_qwen.QwenVisionEncoder):
    """Images and videos to rows with deeper levels."""

    def _split_items(self, out: Any) -> Iterable[Tensor]:
        rows = out.pooler_output
        sizes = [len(each) for each in rows]
        # transformers below 5.19 leaves the levels of all items in one tensor.
        deeper = [level.split(sizes) if isinstance(level, Tensor) else level for level in out.deepstack_features]
        return [torch.cat(levels, dim=-1) for levels in zip(rows, *deeper, strict=True)]
