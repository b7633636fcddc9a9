"""Qwen-Image-Edit: edits an image according to a prompt (``QwenImageEditPipeline``).

The image takes two paths. The vision tower feeds the language model that reads the prompt. The VAE's encoder feeds the
transformer, which gets the image's latents next to the noise. Transformer and decoder are Qwen-Image's.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from omnibus import errors
from omnibus_models import loading, media
from omnibus_models.contract import Encoded, ImageSpec, LoadedComponent, Prepared, no_component
from omnibus_models.families import _qwen, qwen_image
from omnibus_models.limits import check_aspect

#: The pipeline's text around a prompt, and the number of its first tokens that are left out afterwards.
TEMPLATE = (
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, "
    "background), then explain how the user's text instruction should alter or modify the image. Generate a new image "
    "that meets the user's requirements while maintaining consistency with the original input where "
    "appropriate.<|im_end|>\n<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>{}<|im_end|>\n"
    "<|im_start|>assistant\n"
)
SKIPPED_TOKENS = 64
#: Most tokens of a prompt, including the rest of the template and excluding the image.
MAX_PROMPT_TOKENS = qwen_image.MAX_PROMPT_TOKENS
#: Pixels that the pipeline resizes every image to.
AREA_PIXELS = 1024 * 1024
_SIDE_MULTIPLE_PIXELS = 32  # both sides of an image become multiples of it


class QwenImageEditVisionEncoder(_qwen.QwenVisionEncoder):
    """The vision tower, see ``contract.MediaEncoder``."""

    modalities = frozenset({"image"})

    def prepare(self, data: memoryview, modality: str) -> Prepared:
        """Decode one file, resize it to the pipeline's size and preprocess it."""
        _check_image(modality)
        picture = _resize_image(media.decode_image(data, self.limits), _target_area(self.images))
        out = self.images(images=[picture], return_tensors="pt")
        return self._make_prepared("image", out["pixel_values"], out["image_grid_thw"], {})


@dataclass
class ImageLatentEncoder(LoadedComponent):
    """The encoder of the VAE: an image to latents [channels, 1, height, width].

    See ``contract.MediaEncoder``.
    """

    area: int
    limits: media.MediaDecodeLimits

    modalities = frozenset({"image"})

    def prepare(self, data: memoryview, modality: str) -> Prepared:
        """Decode one file, resized to the pipeline's size: ``pixels`` [3, height, width] in [-1, 1]."""
        from diffusers.image_processor import VaeImageProcessor

        _check_image(modality)
        picture = _resize_image(media.decode_image(data, self.limits), self.area)
        pixels = VaeImageProcessor(vae_scale_factor=_SIDE_MULTIPLE_PIXELS).preprocess(picture)[0]
        count = picture.width * picture.height // 16**2
        return Prepared("image", {"pixels": pixels}, {"modality": "image", "n_tokens": count})

    @torch.no_grad()
    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Encode items one by one: the library keeps caches on the module."""
        return [Encoded(self._encode_latents(item.features["pixels"]), item.meta) for item in batch]

    def _encode_latents(self, pixels: Tensor) -> Tensor:
        module: Any = self.module
        weight = next(module.encoder.parameters())
        raw_latents = module.encode(pixels[None, :, None].to(weight)).latent_dist.mode()[0]
        mean, scale = (
            torch.tensor(values).view(-1, 1, 1, 1).to(raw_latents)
            for values in (module.config.latents_mean, module.config.latents_std)
        )
        latents: Tensor = (raw_latents - mean) / scale
        return latents


@dataclass
class QwenImageEditTextEncoder(LoadedComponent):
    """Prompts about an image to hidden states of a Qwen2.5-VL model.

    See ``contract.TextEncoder``.
    """

    tokenizer: Any

    def __post_init__(self) -> None:
        module: Any = self.module
        self._slot: int = module.config.image_token_id
        self._width: int = module.config.text_config.hidden_size
        self._merge: int = module.config.vision_config.spatial_merge_size
        self._control = _qwen.control_tokens(self.tokenizer, (self._slot,))

    def prepare(self, prompt: str, items: Sequence[Encoded] = ()) -> Prepared:
        """Tokenise: ``ids`` [T], ``positions`` [3, T], and ``rows`` [n, H] of the one image."""
        for token in self._control:
            if token in prompt:
                raise errors.BadRequest(f"the prompt holds the control token {token!r}; leave it out", param="prompt")
        if len(items) != 1:
            raise errors.BadRequest(f"this model edits one image, not {len(items)}", param="items")
        count = self._row_count(items[0])
        token_ids = self.tokenizer(TEMPLATE.format(prompt))["input_ids"]
        prompt_count = len(token_ids) - SKIPPED_TOKENS - 1
        if prompt_count > MAX_PROMPT_TOKENS:
            raise errors.ContextTooLong(
                f"the prompt has {prompt_count} tokens; this model takes {MAX_PROMPT_TOKENS}", param="prompt"
            )
        ids = torch.tensor([one for token in token_ids for one in [token] * (count if token == self._slot else 1)])
        features = {"ids": ids, "positions": self._count_positions(ids, items[0]), "rows": items[0].embeds}
        return Prepared("text", features, {"modality": "text", "n_tokens": prompt_count + count})

    @torch.no_grad()
    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Run one forward pass. Padding of short prompts follows them, beyond causal attention."""
        if not batch:
            return []
        module: Any = self.module
        ids = [item.features["ids"] for item in batch]
        padded_ids = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        positions = torch.zeros(_qwen.AXES, *padded_ids.shape, dtype=torch.long)
        inputs = module.get_input_embeddings()(padded_ids.to(module.device))
        for place, item in enumerate(batch):
            positions[:, place, : len(ids[place])] = item.features["positions"]
            inputs[place, padded_ids[place] == self._slot] = item.features["rows"].to(inputs)
        out = module.get_decoder()(
            inputs_embeds=inputs, position_ids=positions.to(module.device), use_cache=False
        ).last_hidden_state
        return [
            Encoded(row[SKIPPED_TOKENS : len(one)], item.meta) for row, one, item in zip(out, ids, batch, strict=True)
        ]

    def _count_positions(self, ids: Tensor, item: Encoded) -> Tensor:
        """Return positions [3, T], with an image's own positions.

        The pipeline does not mark the tokens of an image, and the library then counts them as text. The released
        weights were trained with an image's own positions, so they are counted here.
        """
        module: Any = self.module
        rope_index, _ = module.model.get_rope_index(
            ids[None],
            mm_token_type_ids=(ids[None] == self._slot).long(),
            image_grid_thw=torch.tensor([item.meta["grid_thw"]]),
            attention_mask=torch.ones_like(ids[None]),
        )
        positions: Tensor = rope_index[:, 0]
        return positions

    def _row_count(self, item: Encoded) -> int:
        """Return the image's number of rows. Raises ``BadRequest`` if its shape contradicts its metadata."""
        try:
            frames, rows, columns = (operator.index(extent) for extent in item.meta["grid_thw"])
        except (KeyError, TypeError, ValueError):
            frames = rows = columns = 0
        count = (rows // self._merge) * (columns // self._merge)
        if item.meta.get("modality") != "image" or frames != 1 or min(rows, columns) < self._merge:
            raise errors.BadRequest("the metadata of an image cannot be used", param="items")
        if tuple(item.embeds.shape) != (count, self._width):
            raise errors.BadRequest(
                f"an image must have an embedding of shape {(count, self._width)} by its metadata, "
                f"not {tuple(item.embeds.shape)}",
                param="items",
            )
        return count


class QwenImageEditDenoiser(qwen_image.QwenImageDenoiser):
    """Qwen-Image's transformer with the latents of an image next to the noise.

    See ``contract.Denoiser``.
    """

    edits = True

    def open(
        self, picture: ImageSpec, guides: Sequence[Tensor], image: Tensor | None = None
    ) -> qwen_image.QwenImageDenoising:
        """Begin an image as Qwen-Image does.

        ``image`` [channels, 1, height, width] is read before this returns, and not kept.
        """
        if image is None:
            raise errors.BadRequest("this model edits images; send one", param="image")
        channels, height, width = self._channels, *image.shape[-2:]
        if tuple(image.shape) != (channels, 1, height, width) or not height * width or height % 2 or width % 2:
            raise errors.BadRequest(
                f"the latents of an image are [{channels}, 1, height, width] here, with even sides, "
                f"not {list(image.shape)}",
                param="image",
            )
        return self._start_denoising(
            picture, guides, self._pack_latents(image.transpose(0, 1)), (1, height // 2, width // 2)
        )


class QwenImageEdit:
    """See ``contract.ModelFamily``."""

    name = "qwen_image_edit"
    components = ("vision", "text_encoder", "vae_encoder", "dit", "vae")

    def load(
        self,
        component: str,
        checkpoint: Path,
        device: str = "cpu",
        dtype: str = "float32",
        limits: media.MediaDecodeLimits = media.DEFAULT,
    ) -> Any:
        """Load one component alone. ``limits`` apply to the images of ``vision`` and ``vae_encoder``."""
        checkpoint = Path(checkpoint)
        match component:
            case "vision":
                module = _load_language_model(checkpoint, ["model.language_model", "lm_head"], device, dtype)
                return QwenImageEditVisionEncoder(module, _load_image_processor(checkpoint), None, {}, limits)
            case "text_encoder":
                from transformers import AutoTokenizer

                tokenizer = AutoTokenizer.from_pretrained(checkpoint / "processor", local_files_only=True)
                return QwenImageEditTextEncoder(
                    _load_language_model(checkpoint, ["model.visual", "lm_head"], device, dtype), tokenizer
                )
            case "vae_encoder":
                return _load_image_encoder(checkpoint, device, dtype, limits)
            case "dit":
                return qwen_image.load_denoiser(checkpoint, device, dtype, QwenImageEditDenoiser)
            case "vae":
                return qwen_image.load_decoder(checkpoint, device, dtype)
        raise no_component(self.name, self.components, component)


def _load_language_model(checkpoint: Path, drop: Sequence[str], device: str, dtype: str) -> Any:
    from transformers import Qwen2_5_VLForConditionalGeneration

    part = checkpoint / "text_encoder"
    return loading.load_model(Qwen2_5_VLForConditionalGeneration, part, drop=drop, device=device, dtype=dtype)


def _load_image_encoder(
    checkpoint: Path, device: str, dtype: str, limits: media.MediaDecodeLimits
) -> ImageLatentEncoder:
    from diffusers import AutoencoderKLQwenImage

    from omnibus_models import diffusers_loading

    drop = ("decoder", "post_quant_conv")
    module = diffusers_loading.load_model(
        AutoencoderKLQwenImage, checkpoint, "vae", drop=drop, device=device, dtype=dtype
    )
    return ImageLatentEncoder(module, _target_area(_load_image_processor(checkpoint)), limits)


def _load_image_processor(checkpoint: Path) -> Any:
    from transformers import AutoImageProcessor

    return AutoImageProcessor.from_pretrained(checkpoint / "processor", local_files_only=True)


def _target_area(images: Any) -> int:
    """Return the pixels to resize images to: the pipeline's, or fewer if the language model gets fewer."""
    return min(AREA_PIXELS, int(images.size["longest_edge"]))


def _resize_image(picture: Image.Image, area: int) -> Image.Image:
    """Resize ``picture`` to about ``area`` pixels, in its proportions.

    Raises ``BadMedia`` for an extreme aspect ratio.
    """
    from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit import calculate_dimensions

    check_aspect(*picture.size)
    width, height, _ = calculate_dimensions(area, picture.width / picture.height)
    size = max(width, _SIDE_MULTIPLE_PIXELS), max(height, _SIDE_MULTIPLE_PIXELS)
    check_aspect(*size)  # rounded sides may exceed the processor's limit
    return picture.resize(size, Image.Resampling.LANCZOS)


def _check_image(modality: str) -> None:
    if modality != "image":
        raise errors.BadRequest(f"this encoder takes image, not {modality}")


FAMILY = QwenImageEdit()
