"""Llama 3.2 Vision: a vision encoder and a language model (``MllamaForConditionalGeneration``).

An image is one token of the prompt. Some layers use cross-attention to its encoding, [tiles * (patches + 1), H],
instead of attending to the sequence. Each token attends to the images before it, up to the next ones. Images are
encoded with all their tiles, including empty ones. Tokens before the first image have no rows to attend to. The library
lets them attend to all rows.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from omnibus import errors
from omnibus_models import media
from omnibus_models.attention import Crossing
from omnibus_models.contract import Encoded, LoadedComponent, PrefillInputs, Prepared, TokenizedPrompt
from omnibus_models.families import _language
from omnibus_models.families._vision_language import VisionLanguage

_MAX_IMAGES = 4  # images that an answer attends to: the cache of each is as large as that of thousands of tokens


class _CrossAttentionSpan(NamedTuple):
    """Positions ``begin`` to ``end``, which attend to rows ``first`` to ``last``."""

    begin: int
    end: int
    first: int
    last: int


@dataclass(frozen=True)
class MllamaCrossAttention:
    """Cross-attention of ``length`` positions to ``rows`` [R, H], see ``attention.Attention``."""

    rows: Tensor
    looks: Sequence[_CrossAttentionSpan]
    length: int

    spans = ()

    @property
    def answer_rows(self) -> Tensor:
        return self._visible_rows(self.length - 1, self.length)[0]

    def mask(self, begin: int, end: int) -> Crossing:
        visible = self._visible_rows(begin, end)
        fed = visible.any(-1)
        # Positions without rows attend to all, as in the library.
        visible |= ~fed[:, None]
        return Crossing(None, visible[None, None], fed[None], self.rows[None] if begin == 0 else None)

    def _visible_rows(self, begin: int, end: int) -> Tensor:
        """Return bool [T, R]."""
        visible = torch.zeros(end - begin, len(self.rows), dtype=torch.bool, device=self.rows.device)
        for look in self.looks:
            visible[max(look.begin - begin, 0) : max(look.end - begin, 0), look.first : look.last] = True
        return visible


class MllamaThinker(_language.LanguageThinker):
    """The language model of Llama 3.2 Vision, see ``contract.CrossDecoder``."""

    def __init__(self, module: Any, checkpoint: Path) -> None:
        super().__init__(module, checkpoint, ("image",))
        self.crossed: tuple[int, ...] = tuple(module.config.text_config.cross_attention_layers)
        vision = module.config.vision_config
        self._tiles: int = vision.max_num_tiles
        self._patches = (vision.image_size // vision.patch_size) ** 2 + 1

    @torch.no_grad()
    def forward(self, inputs: Tensor, positions: Tensor, cache: Any, mask: Any) -> Tensor:
        """See ``contract.Decoder``."""
        if not isinstance(mask, Crossing):
            return super().forward(inputs, positions, cache, mask)
        out = self.backbone(
            inputs_embeds=inputs,
            position_ids=positions[0],
            attention_mask=mask.mask,
            cross_attention_states=mask.rows,
            cross_attention_mask=mask.seen,
            full_text_row_masked_out_mask=mask.fed[:, None, :, None].to(inputs.dtype),
            past_key_values=cache,
            use_cache=True,
        )
        hidden: Tensor = out.last_hidden_state
        return hidden

    @torch.no_grad()
    def assemble_prefill(self, prompt: TokenizedPrompt, media: Sequence[Encoded]) -> PrefillInputs:
        """Return the text's embeddings, and the images' rows for cross-attention."""
        layout = self.layout(prompt, media)
        inputs = self.embed(torch.tensor(layout.ids, device=self.device))
        from_encoder = torch.zeros(len(layout.ids), dtype=torch.bool, device=self.device)
        aside = None
        if media:
            rows = torch.cat([item.embeds for item in media]).to(self.device, self.dtype)
            aside = MllamaCrossAttention(rows, self._attention_spans(layout.ids, media), len(layout.ids))
        return PrefillInputs(inputs, layout.positions.to(self.device), layout.delta, from_encoder, aside)

    def _attention_spans(self, ids: Sequence[int], media: Sequence[Encoded]) -> list[_CrossAttentionSpan]:
        from transformers.models.mllama.processing_mllama import get_cross_attention_token_mask

        [token] = self._placeholders
        spans = []
        for index, (begin, end) in enumerate(get_cross_attention_token_mask(list(ids), token)):
            first = index * self._tiles * self._patches
            last = first + media[index].meta["tiles"] * self._patches
            spans.append(_CrossAttentionSpan(begin, len(ids) if end == -1 else end, first, last))
        return spans

    def _count_positions(self, ids: Tensor, media: Sequence[Encoded]) -> tuple[Tensor, int]:
        return torch.arange(ids.shape[1])[None, None], 0

    def _expand_prompt(self, prompt: TokenizedPrompt, media: Sequence[Encoded]) -> tuple[list[int], list[int]]:
        """Expand each image to one token."""
        starts = [place for place, token in enumerate(prompt.ids) if token in self._placeholders]
        for first, last in zip(starts, starts[_MAX_IMAGES:], strict=False):
            if last - first == _MAX_IMAGES:
                raise errors.BadRequest(
                    f"more than {_MAX_IMAGES} images follow one another; send fewer, or text between them",
                    param="messages",
                )
        return list(prompt.ids), starts

    def _row_count(self, meta: Mapping[str, Any]) -> int:
        if not 1 <= operator.index(meta["tiles"]) <= self._tiles:
            raise ValueError("invalid number of tiles")
        return self._tiles * self._patches


@dataclass
class MllamaVisionEncoder(LoadedComponent):
    """Images in tiles through the vision model and the projector, see ``contract.MediaEncoder``."""

    images: Any
    limits: media.MediaDecodeLimits

    modalities = frozenset({"image"})

    def prepare(self, data: memoryview, modality: str) -> Prepared:
        """Decode and preprocess one file.

        Returns ``pixels`` [1, 1, tiles, 3, side, side], ``ratio`` [1, 1] and ``mask``.
        """
        if modality != "image":
            raise errors.BadRequest(f"this encoder takes image, not {modality}")
        out = self.images(images=[media.decode_image(data, self.limits)], return_tensors="pt")
        [[tiles]] = out["num_tiles"]
        features = {
            "pixels": out["pixel_values"],
            "ratio": out["aspect_ratio_ids"],
            "mask": out["aspect_ratio_mask"],
        }
        module: Any = self.module
        rows = features["mask"].shape[-1] * module.model.vision_model.num_patches
        return Prepared("image", features, {"modality": "image", "n_tokens": rows, "tiles": int(tiles)})

    @torch.no_grad()
    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Run one forward pass, in which images are independent."""
        if not batch:
            return []
        module: Any = self.module
        model = module.model
        pixels, ratios, masks = (
            torch.cat([item.features[name] for item in batch]).to(module.device) for name in ("pixels", "ratio", "mask")
        )
        output = model.vision_model(pixel_values=pixels, aspect_ratio_ids=ratios, aspect_ratio_mask=masks)
        rows = model.multi_modal_projector(output.last_hidden_state).flatten(1, 3)
        return [Encoded(row, item.meta) for row, item in zip(rows, batch, strict=True)]


class Mllama(VisionLanguage):
    """See ``contract.ModelFamily``."""

    name = "mllama"
    architecture = "MllamaForConditionalGeneration"
    eyes = ("model.vision_model", "model.multi_modal_projector")

    def reader(self, checkpoint: Path, dtype: str = "float32") -> MllamaThinker:
        """See ``contract.ModelFamily``. Always raises ``Fatal``: other engines lack cross-attention."""
        raise errors.Fatal(
            "layers of Llama 3.2 Vision use cross-attention to images, which no other engine supports; "
            "declare omnibus_engines:transformers for it"
        )

    def _make_vision_encoder(
        self, module: Any, checkpoint: Path, limits: media.MediaDecodeLimits
    ) -> MllamaVisionEncoder:
        from transformers import AutoImageProcessor

        return MllamaVisionEncoder(
            module, AutoImageProcessor.from_pretrained(checkpoint, local_files_only=True), limits
        )

    def _make_thinker(self, module: Any, checkpoint: Path) -> MllamaThinker:
        return MllamaThinker(module, checkpoint)


FAMILY = Mllama()
