"""Janus and Janus-Pro: chats about images, and images generated token by token.

The class is ``JanusForConditionalGeneration``.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from omnibus import errors
from omnibus_models import loading, media
from omnibus_models.contract import Encoded, ImageSpec, LoadedComponent, Prepared, no_component
from omnibus_models.families import _language, _latent_preview
from omnibus_models.families._image_tokens import TokenDenoiser, TokenDenoising
from omnibus_models.families._item_processor import ItemProcessor
from omnibus_models.families._own_encoder import OwnEncoder

#: The library's guidance if the checkpoint has none.
GUIDANCE = 5.0
_GREY = 127

_VISION = ("model.vision_model", "model.aligner")
_LANGUAGE = ("model.language_model", "lm_head")
_DRAWING = ("model.generation_embeddings", "model.generation_aligner", "model.generation_head")
_DRAWN = ("model.vqmodel",)


class JanusThinker(_language.SequentialThinker):
    """The language model for chats. Marks surround the rows of an image."""

    def __init__(self, module: Any, checkpoint: Path, modalities: Sequence[str]) -> None:
        super().__init__(module, checkpoint, modalities)
        self._begin = _system_prompt(checkpoint)

    def _frame_placeholders(self, text: str) -> str:
        names = self._tokenizer
        framed_text = text.replace(names.image_token, f"{names.boi_token}{names.image_token}{names.eoi_token}")
        return self._begin + framed_text


@dataclass
class JanusTextEncoder(LoadedComponent):
    """Prompts to token embeddings, up to an image's start, see ``contract.TextEncoder``."""

    tokenizer: Any
    context: int

    twins = True

    def __post_init__(self) -> None:
        self._control = _language.control_tokens(self.tokenizer, ())
        module: Any = self.module
        config = module.generation_config
        self._pad = _value_or_default(config.pad_token_id, self.tokenizer.pad_token_id)
        self._kept = {_value_or_default(config.bos_token_id, self.tokenizer.bos_token_id), self.tokenizer.boi_token_id}

    def prepare(self, prompt: str, items: Sequence[Encoded] = ()) -> Prepared:
        """Tokenise a user's message, and the mark where its image begins: ``ids`` [T]."""
        if items:
            raise errors.BadRequest("this model generates images only from text", param="items")
        return self._make_prepared(self._prompt_ids(prompt))

    def prepare_negative(self, prompt: str, negative: str) -> Prepared:
        """Prepare an empty prompt of the same length. Raises ``BadRequest`` unless ``negative`` is blank."""
        if negative.strip():
            raise errors.BadRequest(
                "this model does not support negative prompts; leave it out", param="negative_prompt"
            )
        return self._make_prepared([token if token in self._kept else self._pad for token in self._prompt_ids(prompt)])

    @torch.no_grad()
    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Return [T, H] of each prompt."""
        module: Any = self.module
        table = module.get_input_embeddings()
        return [Encoded(table(item.features["ids"].to(table.weight.device)), item.meta) for item in batch]

    def _prompt_ids(self, prompt: str) -> list[int]:
        for token in self._control:
            if token in prompt:
                raise errors.BadRequest(f"the prompt holds the control token {token!r}; leave it out", param="prompt")
        messages = [{"role": "user", "content": [{"type": "text", "text": prompt}]}]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids: list[int] = self.tokenizer(text + self.tokenizer.boi_token)["input_ids"]
        if len(ids) > self.context:
            raise errors.ContextTooLong(
                f"the prompt has {len(ids)} tokens; this model takes {self.context}", param="prompt"
            )
        return ids

    def _make_prepared(self, ids: list[int]) -> Prepared:
        return Prepared("text", {"ids": torch.tensor(ids)}, {"modality": "text", "n_tokens": len(ids)})


class JanusDenoiser(TokenDenoiser):
    """The language model as it generates images, see ``contract.Denoiser``. Latents are tokens.

    A step is one token, so the model determines the number of steps and ignores the requested one. Images have one
    size.
    """

    def __init__(self, module: Any, checkpoint: Path) -> None:
        config = module.config
        super().__init__(module, module.model.language_model, config.vq_config.num_embeddings)
        self._checkpoint = checkpoint
        self._grid: int = config.vq_config.num_patches
        self._side = _image_side(config)
        self._width: int = config.text_config.hidden_size
        self._context = _prompt_context(config)
        self._guidance = float(_value_or_default(module.generation_config.guidance_scale, GUIDANCE))

    @property
    def default_size(self) -> tuple[int, int]:
        """The only supported size."""
        return self._side, self._side

    @torch.no_grad()
    def open(self, picture: ImageSpec, guides: Sequence[Tensor]) -> TokenDenoising:
        """Read the prompt. The negative prompt counts only with a guidance above 1."""
        self._check_request(picture, guides)
        guidance = self._guidance if picture.guidance is None else picture.guidance
        active_guides = guides if guidance > 1 else guides[:1]
        count, length = self._grid**2, len(active_guides[0])
        return self._start_denoising(
            torch.stack([guide.to(self._device, self._dtype) for guide in active_guides]),
            torch.arange(length, length + count)[None],
            grid=(self._grid, self._grid),
            generator=torch.Generator().manual_seed(picture.seed),
            guidance=guidance if len(active_guides) > 1 else 1.0,
        )

    def palette(self) -> Tensor:
        """Return [codes, 3]: the colour of each token, averaged over neighbours."""
        decoder = _load_decoder(self._checkpoint, str(self._device), "float32")
        codes = decoder.code_vectors()
        size = (_latent_preview.IMAGE_COUNT, _latent_preview.SIDE_LATENTS, _latent_preview.SIDE_LATENTS)
        samples = codes[torch.randint(len(codes), size, generator=torch.Generator().manual_seed(0)).to(codes.device)]
        return _latent_preview.append_constant(codes.cpu()) @ _latent_preview.fit_palette(
            samples, decoder.decode_colours(samples.permute(0, 3, 1, 2))
        )

    def preview(self, denoising: TokenDenoising, palette: Tensor) -> Tensor:
        """Return a pixel for each token; missing tokens are grey."""
        pixels = torch.full((self._grid**2, 3), _GREY, dtype=torch.uint8)
        pixels[: denoising.done] = _latent_preview.to_bytes(palette[denoising.chosen])
        return pixels.view(self._grid, self._grid, 3)

    def _check_request(self, picture: ImageSpec, guides: Sequence[Tensor]) -> None:
        if picture.frames != 1:
            raise errors.BadRequest("this model generates images, not videos: frames must be 1", param="frames")
        for name, pixels in (("width", picture.width), ("height", picture.height)):
            if pixels != self._side:
                raise errors.BadRequest(
                    f"this model generates images of {self._side}x{self._side}: {name} cannot be {pixels}", param=name
                )
        shapes = {tuple(guide.shape) for guide in guides}
        if len(shapes) != 1 or any(
            len(shape) != 2 or shape[1] != self._width or not 0 < shape[0] <= self._context for shape in shapes
        ):
            raise errors.BadRequest(
                f"embeddings of the prompt and the negative prompt must be [tokens, {self._width}] here, "
                f"equally many, at most {self._context}",
                param="embeds",
            )

    def _embed_tokens(self, tokens: Tensor) -> Tensor:
        module: Any = self.module
        embeddings: Tensor = module.prepare_embeddings_for_image_generation(tokens)
        return embeddings

    def _token_scores(self, hidden: Tensor) -> Tensor:
        module: Any = self.module
        scores: Tensor = module.model.generation_head(hidden)
        return scores


class JanusImageDecoder(LoadedComponent):
    """The decoder of the VQ-VAE: tokens to an image, see ``contract.ImageDecoder``."""

    def __init__(self, module: Any, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__(module)
        self._vq = module.model.vqmodel
        self._grid: int = module.config.vq_config.num_patches
        self._weight = self._vq.post_quant_conv.weight
        self._mean, self._deviation = (torch.tensor(values)[:, None, None] for values in (mean, deviation))

    @torch.no_grad()
    def code_vectors(self) -> Tensor:
        """Return [codes, width]: the decoder's vector of each token."""
        table: Tensor = self._vq.quantize.embedding.weight
        return torch.nn.functional.normalize(table, p=2, dim=-1)

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Decode [1, 1, rows, columns] tokens to uint8 [H, W, 3] on the CPU."""
        table = self.code_vectors()
        tokens = latents.long()
        if latents.shape != (1, 1, self._grid, self._grid) or not bool(
            ((tokens == latents) & (tokens >= 0) & (tokens < len(table))).all()
        ):
            raise errors.BadRequest(
                f"this decoder takes tokens [1, 1, {self._grid}, {self._grid}] from 0 to {len(table) - 1} as latents, "
                f"not these {list(latents.shape)}",
                param="latents",
            )
        surface = table[tokens[0, 0].to(table.device)].permute(2, 0, 1)
        return _latent_preview.to_bytes(self.decode_colours(surface[None])[0].permute(1, 2, 0).cpu())

    @torch.no_grad()
    def decode_colours(self, surfaces: Tensor) -> Tensor:
        """Decode [B, width, rows, columns] to colours, float32 [B, 3, H, W].

        Those of images are in [0, 1].
        """
        output = self._vq.decoder(self._vq.post_quant_conv(surfaces.to(self._weight))).float()
        colours: Tensor = output * self._deviation.to(output) + self._mean.to(output)
        return colours.clamp(0, 1)


class Janus:
    """See ``contract.ModelFamily``."""

    name = "janus"
    components = ("vision", "thinker", "text_encoder", "dit", "vae")

    def load(
        self,
        component: str,
        checkpoint: Path,
        device: str = "cpu",
        dtype: str = "float32",
        limits: media.MediaDecodeLimits = media.DEFAULT,
    ) -> Any:
        """Load one component alone, of the VQ-VAE its decoder. ``limits`` apply to the images of ``vision``."""
        checkpoint = Path(checkpoint)
        match component:
            case "vision":
                module = _load_module(checkpoint, [*_LANGUAGE, *_DRAWING, *_DRAWN], device, dtype)
                return OwnEncoder(module.model, ItemProcessor.load(checkpoint), limits, batched=("image",))
            case "thinker":
                return JanusThinker(
                    _load_module(checkpoint, [*_VISION, *_DRAWING, *_DRAWN], device, dtype), checkpoint, ("image",)
                )
            case "text_encoder":
                return _text_encoder(checkpoint, device, dtype)
            case "dit":
                drop = [*_VISION, *_DRAWN, "model.language_model.embed_tokens", "lm_head"]
                return JanusDenoiser(_load_module(checkpoint, drop, device, dtype), checkpoint)
            case "vae":
                return _load_decoder(checkpoint, device, dtype)
        raise no_component(self.name, self.components, component)

    def reader(self, checkpoint: Path, dtype: str = "float32") -> JanusThinker:
        """See ``contract.ModelFamily``."""
        drop = [*_VISION, *_DRAWING, *_DRAWN, "model.language_model.layers", "lm_head"]
        return JanusThinker(_load_module(Path(checkpoint), drop, "cpu", dtype), Path(checkpoint), ("image",))


def _text_encoder(checkpoint: Path, device: str, dtype: str) -> JanusTextEncoder:
    from transformers import AutoTokenizer

    drop = [*_VISION, *_DRAWING, *_DRAWN, "model.language_model.layers", "model.language_model.norm", "lm_head"]
    module = _load_module(checkpoint, drop, device, dtype)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    return JanusTextEncoder(module, tokenizer, _prompt_context(module.config))


def _load_decoder(checkpoint: Path, device: str, dtype: str) -> JanusImageDecoder:
    from transformers import AutoImageProcessor

    drop = [*_VISION, *_LANGUAGE, *_DRAWING, *(f"model.vqmodel.{part}" for part in ("encoder", "quant_conv"))]
    colours = AutoImageProcessor.from_pretrained(checkpoint, local_files_only=True)
    return JanusImageDecoder(_load_module(checkpoint, drop, device, dtype), colours.image_mean, colours.image_std)


def _load_module(checkpoint: Path, drop: Sequence[str], device: str, dtype: str) -> Any:
    from transformers import JanusForConditionalGeneration

    return loading.load_model(JanusForConditionalGeneration, checkpoint, drop=drop, device=device, dtype=dtype)


def _system_prompt(checkpoint: Path) -> str:
    """Return the text that the joint processor puts before every chat.

    It is empty unless its configuration enables it.
    """
    from transformers.models.janus.processing_janus import DEFAULT_SYSTEM_PROMPT

    file = checkpoint / "processor_config.json"
    uses_default = file.exists() and json.loads(file.read_text()).get("use_default_system_prompt", False)
    return DEFAULT_SYSTEM_PROMPT if uses_default else ""


def _prompt_context(config: Any) -> int:
    """Return the most tokens of a prompt, with room for an image."""
    return int(config.text_config.max_position_embeddings - config.vq_config.num_patches**2)


def _image_side(config: Any) -> int:
    """Return the pixels on a side of an image: each level after the first doubles them."""
    return int(config.vq_config.num_patches * 2 ** (len(config.vq_config.channel_multiplier) - 1))


def _value_or_default(value: Any, usual: Any) -> Any:
    return usual if value is None else value


FAMILY = Janus()
