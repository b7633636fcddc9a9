"""Qwen-Image: text encoder (Qwen2.5-VL), diffusion transformer and VAE decoder (``QwenImagePipeline``)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from omnibus import errors
from omnibus_models import loading
from omnibus_models.contract import Encoded, ImageSpec, LoadedComponent, Prepared, no_component
from omnibus_models.families import _flow_schedule, _latent_preview, _qwen
from omnibus_models.recorded_calls import RecordedCalls

#: The pipeline's text around a prompt, and the number of its first tokens that are left out afterwards.
TEMPLATE = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
SKIPPED_TOKENS = 34
#: Most tokens of a prompt, the rest of the template included. The pipeline silently truncates prompts.
MAX_PROMPT_TOKENS = 1024
#: The pipeline's usual guidance.
GUIDANCE = 4.0
_PATCH = 2  # latents per position of the transformer, on either side
#: Frames, rows and columns of patches.
Plane = tuple[int, int, int]


@dataclass
class QwenImageTextEncoder(LoadedComponent):
    """Prompts to hidden states of a Qwen2.5-VL language model, see ``contract.TextEncoder``."""

    tokenizer: Any

    def __post_init__(self) -> None:
        self._control = _qwen.control_tokens(self.tokenizer, ())

    def prepare(self, prompt: str, items: Sequence[Encoded] = ()) -> Prepared:
        """Insert the prompt into the pipeline's template and tokenise it: ``ids`` [T]."""
        if items:
            raise errors.BadRequest("this model reads only text, no images", param="items")
        for token in self._control:
            if token in prompt:
                raise errors.BadRequest(f"the prompt holds the control token {token!r}; leave it out", param="prompt")
        ids = self.tokenizer(TEMPLATE.format(prompt))["input_ids"]
        count = len(ids) - SKIPPED_TOKENS
        if count > MAX_PROMPT_TOKENS:
            raise errors.ContextTooLong(
                f"the prompt has {count} tokens; this model takes {MAX_PROMPT_TOKENS}", param="prompt"
            )
        return Prepared("text", {"ids": torch.tensor(ids)}, {"modality": "text", "n_tokens": count})

    @torch.no_grad()
    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Run one forward pass. Padding of short prompts follows them, beyond causal attention."""
        if not batch:
            return []
        module: Any = self.module
        ids = [item.features["ids"] for item in batch]
        padded_ids = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True).to(module.device)
        positions = torch.arange(padded_ids.shape[1], device=module.device).expand(_qwen.AXES, *padded_ids.shape)
        out = module.get_decoder()(
            inputs_embeds=module.get_input_embeddings()(padded_ids), position_ids=positions, use_cache=False
        )
        hidden = out.last_hidden_state
        return [
            Encoded(row[SKIPPED_TOKENS : len(one)], item.meta)
            for row, one, item in zip(hidden, ids, batch, strict=True)
        ]


@dataclass
class QwenImageDenoising:
    """One image in progress, see ``contract.Denoising``.

    ``shape`` are the planes of the image, and then of the source image. ``latents`` and those of that ``image``, which
    may be empty, are [tokens, channels], in the transformer's form. ``sigmas`` [steps + 1] and ``times`` [steps] are
    float32 on the CPU; ``velocity`` is the last step's.
    """

    shape: tuple[Plane, ...]
    latents: Tensor
    image: Tensor
    guides: tuple[Tensor, ...]
    guidance: float
    sigmas: Tensor
    times: Tensor
    velocity: Tensor | None = field(default=None, repr=False)
    done: int = 0

    @property
    def rows(self) -> int:
        return len(self.guides)

    @property
    def tokens(self) -> int:
        return len(self.latents) + len(self.image)

    @property
    def steps(self) -> int:
        return len(self.times)

    def state(self) -> Tensor:
        return self.latents.float().cpu().reshape(-1)

    def resume(self, state: Tensor, steps: int) -> None:
        self.latents, self.done = state.view(self.latents.shape).to(self.latents), steps

    def advance(self, velocities: Tensor) -> None:
        """Take Euler's step along the velocities for ``guides``, in the pipeline's precisions."""
        self.velocity = velocities[0] if self.rows == 1 else self._apply_guidance(*velocities)
        length = self.sigmas[self.done + 1] - self.sigmas[self.done]
        self.latents = (self.latents.float() + length * self.velocity).to(self.velocity.dtype)
        self.done += 1

    def _apply_guidance(self, positive: Tensor, negative: Tensor) -> Tensor:
        """Guide away from the negative prompt, keeping the prompt's velocity norm."""
        away = negative + self.guidance * (positive - negative)
        return away * (torch.norm(positive, dim=-1, keepdim=True) / torch.norm(away, dim=-1, keepdim=True))


class QwenImageDenoiser(LoadedComponent):
    """The transformer with the pipeline's schedule, see ``contract.Denoiser``."""

    def __init__(self, module: Any, checkpoint: Path, scheduler: Any, unit: int) -> None:
        super().__init__(module)
        self._checkpoint = checkpoint
        self._scheduler = scheduler
        self.unit = unit
        self._channels: int = module.config.in_channels // _PATCH**2
        self._width: int = module.config.joint_attention_dim
        self._device: torch.device = module.proj_out.weight.device
        self._dtype: torch.dtype = module.proj_out.weight.dtype
        self._calls = RecordedCalls(module, self._run_transformer)

    def open(self, picture: ImageSpec, guides: Sequence[Tensor]) -> QwenImageDenoising:
        """Draw the noise and compute the schedule. A negative prompt counts only with a guidance above 1."""
        return self._start_denoising(picture, guides, torch.zeros(0, self._channels * _PATCH**2))

    def _start_denoising(
        self, picture: ImageSpec, guides: Sequence[Tensor], image: Tensor, *planes: Plane
    ) -> QwenImageDenoising:
        """Begin an image whose source ``image`` [tokens, channels] fills ``planes``."""
        plane = self._latent_plane(picture)
        if any(guide.dim() != 2 or guide.shape[1] != self._width or not len(guide) for guide in guides):
            raise errors.BadRequest(f"a prompt's embeddings must be [tokens, {self._width}] here", param="embeds")
        sigmas, times = _flow_schedule.laid_out(self._scheduler, picture.steps, plane[1] * plane[2])
        guidance = GUIDANCE if picture.guidance is None else picture.guidance
        active_guides = guides if guidance > 1 else guides[:1]
        return QwenImageDenoising(
            shape=(plane, *planes),
            latents=self._draw_noise(plane, picture.seed).to(self._device),
            image=image.to(self._device, self._dtype),
            guides=tuple(guide.to(self._device, self._dtype) for guide in active_guides),
            guidance=guidance,
            sigmas=sigmas,
            times=times,
        )

    @torch.no_grad()
    def step(self, batch: Sequence[QwenImageDenoising]) -> None:
        """Run one forward pass for all guides, then each image's step."""
        guides = [guide for each in batch for guide in each.guides]
        lengths = torch.tensor([len(guide) for guide in guides], device=self._device)
        texts = torch.nn.utils.rnn.pad_sequence(guides, batch_first=True)
        mask = torch.arange(texts.shape[1], device=self._device) < lengths[:, None]
        times = torch.stack([each.times[each.done] for each in batch for _ in each.guides])
        masks = [] if len({len(guide) for guide in guides}) == 1 else [mask]
        latents = torch.stack([torch.cat([each.latents, each.image]) for each in batch for _ in each.guides])
        out = self._calls(batch[0].shape, latents, times.to(self._device, self._dtype) / 1000, texts, *masks)
        predictions = out[:, : len(batch[0].latents)]
        for each, velocities in zip(batch, predictions.split([each.rows for each in batch]), strict=True):
            each.advance(velocities)

    def _run_transformer(
        self, shape: tuple[Plane, ...], latents: Tensor, times: Tensor, texts: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Return the velocities of ``latents``.

        They are [rows, tokens, channels], of images with the planes of ``shape``.
        """
        [velocities] = self.module(
            hidden_states=latents,
            timestep=times,
            encoder_hidden_states=texts,
            encoder_hidden_states_mask=mask,
            img_shapes=[list(shape)] * len(texts),
            return_dict=False,
        )
        result: Tensor = velocities
        return result

    def latents(self, denoising: QwenImageDenoising) -> Tensor:
        """Return [channels, 1, height, width] float32 on the CPU."""
        return self._unpack_latents(denoising.latents, denoising.shape[0]).float().cpu()

    def palette(self) -> Tensor:
        """Return [channels + 1, 3]: colours that latents add to a plain surface, and its base colour."""
        return _latent_preview.fit_surface_colours(
            self._channels, load_decoder(self._checkpoint, str(self._device), "float32").decode_colours
        )

    def preview(self, denoising: QwenImageDenoising, palette: Tensor) -> Tensor:
        """Return a pixel for each latent, extrapolated along the last velocity."""
        latents = denoising.latents
        if denoising.velocity is not None:
            latents = latents - denoising.sigmas[denoising.done] * denoising.velocity
        return _latent_preview.render_preview(self._unpack_latents(latents, denoising.shape[0])[:, 0], palette)

    def _latent_plane(self, picture: ImageSpec) -> Plane:
        side = self.unit * _PATCH
        if picture.frames != 1:
            raise errors.BadRequest("this model generates images, not videos: frames must be 1", param="frames")
        for name, pixels in (("width", picture.width), ("height", picture.height)):
            if pixels % side or pixels < side:
                raise errors.BadRequest(f"{name} must be a multiple of {side}, not {pixels}", param=name)
        return 1, picture.height // side, picture.width // side

    def _draw_noise(self, plane: Plane, seed: int) -> Tensor:
        _, rows, columns = plane
        size = (1, self._channels, _PATCH * rows, _PATCH * columns)
        return self._pack_latents(torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=self._dtype))

    def _pack_latents(self, latents: Tensor) -> Tensor:
        """Pack [1, channels, height, width] for the transformer."""
        from diffusers import QwenImagePipeline

        packed_latents: Tensor = QwenImagePipeline._pack_latents(latents, *latents.shape)
        return packed_latents[0]

    def _unpack_latents(self, latents: Tensor, plane: Plane) -> Tensor:
        from diffusers import QwenImagePipeline

        _, rows, columns = plane
        unpacked_latents: Tensor = QwenImagePipeline._unpack_latents(latents[None], _PATCH * rows, _PATCH * columns, 1)
        return unpacked_latents[0]


class QwenImageDecoder(LoadedComponent):
    """The decoder of the VAE, see ``contract.ImageDecoder``."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        config, shape = module.config, (1, module.config.z_dim, 1, 1, 1)
        self._weight = next(module.decoder.parameters())
        self._mean = torch.tensor(config.latents_mean).view(shape).to(self._weight)
        self._scale = 1.0 / torch.tensor(config.latents_std).view(shape).to(self._weight)

    def decode(self, latents: Tensor) -> Tensor:
        """Decode [channels, 1, height, width] to uint8 [H, W, 3] on the CPU."""
        if latents.dim() != 4 or latents.shape[:2] != (self._mean.shape[1], 1):
            raise errors.BadRequest(
                f"this decoder takes latents [{self._mean.shape[1]}, 1, height, width], not {list(latents.shape)}",
                param="latents",
            )
        return _latent_preview.to_bytes(self.decode_colours(latents[None])[0].permute(1, 2, 0).cpu())

    @torch.no_grad()
    def decode_colours(self, latents: Tensor) -> Tensor:
        """Decode [B, channels, 1, height, width] to colours, float32 [B, 3, H, W] in [0, 1]."""
        module: Any = self.module
        out = module.decode(latents.to(self._weight) / self._scale + self._mean, return_dict=False)[0][:, :, 0]
        colours: Tensor = (out * 0.5 + 0.5).clamp(0, 1).float()
        return colours


class QwenImage:
    """See ``contract.ModelFamily``."""

    name = "qwen_image"
    components = ("text_encoder", "dit", "vae")

    def load(self, component: str, checkpoint: Path, device: str = "cpu", dtype: str = "float32") -> Any:
        """Load one component alone, of the VAE its decoder."""
        checkpoint = Path(checkpoint)
        match component:
            case "text_encoder":
                return _text_encoder(checkpoint, device, dtype)
            case "dit":
                return load_denoiser(checkpoint, device, dtype)
            case "vae":
                return load_decoder(checkpoint, device, dtype)
        raise no_component(self.name, self.components, component)


def _text_encoder(checkpoint: Path, device: str, dtype: str) -> QwenImageTextEncoder:
    from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

    drop = ["model.visual", "lm_head"]
    part = checkpoint / "text_encoder"
    module = loading.load_model(Qwen2_5_VLForConditionalGeneration, part, drop=drop, device=device, dtype=dtype)
    return QwenImageTextEncoder(module, AutoTokenizer.from_pretrained(checkpoint / "tokenizer", local_files_only=True))


def load_denoiser(
    checkpoint: Path, device: str, dtype: str, kind: type[QwenImageDenoiser] = QwenImageDenoiser
) -> QwenImageDenoiser:
    """Load the transformer with its schedule as a ``kind`` of denoiser."""
    from diffusers import QwenImagePipeline, QwenImageTransformer2DModel  # noqa: F401 the first is for requests

    from omnibus_models import diffusers_loading

    module = diffusers_loading.load_model(
        QwenImageTransformer2DModel, checkpoint, "transformer", device=device, dtype=dtype
    )
    if module.config.guidance_embeds:
        raise errors.Fatal(f"{checkpoint} is distilled for guidance, which this family does not serve")
    try:
        # The VAE's scale is in its configuration; its weights are not needed.
        halvings = len(json.loads((checkpoint / "vae" / "config.json").read_text())["temperal_downsample"])
    except (OSError, ValueError, KeyError) as error:
        raise errors.Fatal(f"{checkpoint} lacks the configuration of its VAE: {error}") from error
    return kind(module, checkpoint, _flow_schedule.load_scheduler(checkpoint), 2**halvings)


def load_decoder(checkpoint: Path, device: str, dtype: str) -> QwenImageDecoder:
    """Load the VAE without its encoder."""
    from diffusers import AutoencoderKLQwenImage

    from omnibus_models import diffusers_loading

    drop = ("encoder", "quant_conv")
    return QwenImageDecoder(
        diffusers_loading.load_model(AutoencoderKLQwenImage, checkpoint, "vae", drop=drop, device=device, dtype=dtype)
    )


FAMILY = QwenImage()
