"""Gemma 3: a vision tower and a language model (``Gemma3ForConditionalGeneration``).

The tokens of an image attend to each other bidirectionally, and most layers attend only within a window.

Encoded items are the tower's pooled output: [tokens, width of the tower]. Norm and projection to the language model's
width are loaded with the language model. Models of all sizes share one frozen tower (4B, 12B and 27B were trained on
it), but each has its own projector. So one encoder can serve them all, with bitwise equal results. Its output is
narrower than the language model's input.

Images are not cut into crops (``do_pan_and_scan``), as in the library by default.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from omnibus import errors
from omnibus_models import media
from omnibus_models.attention import Attention, BidirectionalAttention
from omnibus_models.contract import Encoded, LoadedComponent, Prepared, PromptLayout
from omnibus_models.families import _language
from omnibus_models.families._vision_language import LANGUAGE_MODULES, VisionLanguage


class Gemma3Thinker(_language.LanguageThinker):
    """The language model of Gemma 3, with its projector."""

    windows = True
    untold_calls = "gemma"

    def __init__(self, module: Any, checkpoint: Path) -> None:
        super().__init__(module, checkpoint, ("image",))
        names = self._tokenizer.convert_ids_to_tokens
        begin, end = names(module.config.boi_token_id), names(module.config.eoi_token_id)
        self._begin, self._frame = begin, f"\n\n{begin}{names(module.config.image_token_id)}{end}\n\n"
        self._window: int = module.get_decoder().config.sliding_window

    def _control_tokens(self) -> tuple[str, ...]:
        module: Any = self.module
        around = self._tokenizer.convert_ids_to_tokens([module.config.boi_token_id, module.config.eoi_token_id])
        return (*super()._control_tokens(), *around)

    def forward(self, inputs: Tensor, positions: Tensor, cache: Any, mask: Any) -> Tensor:
        """See ``contract.Decoder``. A position is its place in the cache."""
        return super().forward(inputs, positions, cache, None if mask is None else self._layer_masks(mask, positions))

    def _layer_masks(self, mask: Tensor, positions: Tensor) -> dict[str, Tensor]:
        """Return ``mask`` bool [B, 1, T, S] for each kind of layer; ``positions`` are [1, B, T]."""
        near, places = mask, mask.shape[-1]
        if places > self._window:
            begin = positions[0, :, None, :, None] - self._window
            near = mask & (torch.arange(places, device=mask.device) > begin)
        return {"full_attention": mask, "sliding_attention": near}

    def _count_positions(self, ids: Tensor, media: Sequence[Encoded]) -> tuple[Tensor, int]:
        return torch.arange(ids.shape[1])[None, None], 0

    def _prefill_attention(self, layout: PromptLayout, media: Sequence[Encoded]) -> Attention | None:
        spans = [(start, start + item.embeds.shape[0]) for start, item in zip(layout.starts, media, strict=True)]
        return BidirectionalAttention(spans, self.device) if spans else None

    def _frame_placeholders(self, text: str) -> str:
        return text.replace(self._begin, self._frame)

    def _row_count(self, meta: Mapping[str, Any]) -> int:
        module: Any = self.module
        return int(module.config.mm_tokens_per_image)

    def _row_width(self, modality: str) -> int:
        module: Any = self.module
        return int(module.config.vision_config.hidden_size)

    @torch.no_grad()
    def _project_rows(self, rows: Tensor) -> Tensor:
        module: Any = self.module
        projector = module.model.multi_modal_projector
        embeddings: Tensor = projector.mm_soft_emb_norm(rows) @ projector.mm_input_projection_weight
        return embeddings.type_as(rows)


@dataclass
class Gemma3VisionEncoder(LoadedComponent):
    """Images through the tower, see ``contract.MediaEncoder``. All are resized to one size."""

    images: Any
    limits: media.MediaDecodeLimits

    modalities = frozenset({"image"})

    def prepare(self, data: memoryview, modality: str) -> Prepared:
        """Decode and preprocess one file: ``pixels`` [1, 3, side, side]."""
        if modality != "image":
            raise errors.BadRequest(f"this encoder takes image, not {modality}")
        picture = media.decode_image(data, self.limits)
        pixels = self.images(images=[picture], do_pan_and_scan=False, return_tensors="pt")["pixel_values"]
        module: Any = self.module
        return Prepared(
            "image", {"pixels": pixels}, {"modality": "image", "n_tokens": module.config.mm_tokens_per_image}
        )

    @torch.no_grad()
    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Run one forward pass, in which images are independent."""
        if not batch:
            return []
        module: Any = self.module
        pixels = torch.cat([item.features["pixels"] for item in batch]).to(module.device)
        patches = module.model.vision_tower(pixel_values=pixels, return_dict=True).last_hidden_state
        return [Encoded(rows, item.meta) for rows, item in zip(self._pool_patches(patches), batch, strict=True)]

    def _pool_patches(self, patches: Tensor) -> Tensor:
        """Pool [B, patches, W] to [B, tokens, W]: the mean of each square of neighbours."""
        module: Any = self.module
        side = int(patches.shape[1] ** 0.5)
        size = side // int(module.config.mm_tokens_per_image**0.5)
        squares = patches.transpose(1, 2).reshape(len(patches), -1, side, side)
        return nn.functional.avg_pool2d(squares, size, size).flatten(2).transpose(1, 2)


class Gemma3(VisionLanguage):
    """See ``contract.ModelFamily``."""

    name = "gemma3"
    architecture = "Gemma3ForConditionalGeneration"
    eyes = ("model.vision_tower",)
    mind = (*LANGUAGE_MODULES, "model.multi_modal_projector")

    def reader(self, checkpoint: Path, dtype: str = "float32") -> Gemma3Thinker:
        """See ``contract.ModelFamily``. Always raises ``Fatal``: other engines do not project rows."""
        raise errors.Fatal(
            "rows of Gemma 3's encoder are projected by its language model, which no other engine does; "
            "declare omnibus_engines:transformers for it"
        )

    def _make_vision_encoder(
        self, module: Any, checkpoint: Path, limits: media.MediaDecodeLimits
    ) -> Gemma3VisionEncoder:
        from transformers import AutoImageProcessor

        return Gemma3VisionEncoder(
            module, AutoImageProcessor.from_pretrained(checkpoint, local_files_only=True), limits
        )

    def _make_thinker(self, module: Any, checkpoint: Path) -> Gemma3Thinker:
        return Gemma3Thinker(module, checkpoint)


FAMILY = Gemma3()
