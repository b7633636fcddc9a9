"""GLM-Image: a prior generates a rough image by tokens, and a diffusion transformer follows it.

``GlmImagePipeline`` has a glyph encoder for text in the image (byT5), the prior (``vision_language_encoder``), the
transformer and the decoder of a VAE.

The transformer of GLM-Image: it follows a prior, and texts to write in the image.
"""

import copy
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from omnibus import errors
from omnibus_models import loading
from omnibus_models.contract import Encoded, ImageSpec, LoadedComponent, Prepared, no_component
from omnibus_models.families import _language, _latent_preview
from omnibus_models.families._glm_decoder import load_decoder
from omnibus_models.families._image_tokens import TokenDenoiser, TokenDenoising

#: The pipeline's usual guidance.
GUIDANCE = 1.5


@dataclass
class GlmDenoising:
    """One image in progress, see ``contract.Denoising``.

    ``latents`` are [channels, height, width], ``prior`` [positions] the tokens to follow. ``guides`` [T, W] are the
    texts of the prompt, and no text. ``sigmas`` [steps + 1] and ``times`` [steps] are float32 on the CPU.
    """

    shape: tuple[int, int]  # rows and columns of positions
    latents: Tensor
    prior: Tensor
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
        return len(self.prior)

    @property
    def steps(self) -> int:
        return len(self.times)

    def state(self) -> Tensor:
        return self.latents.float().cpu().reshape(-1)

    def resume(self, state: Tensor, steps: int) -> None:
        self.latents, self.done = state.view(self.latents.shape).to(self.latents.device), steps

    def advance(self, velocities: Sequence[Tensor]) -> None:
        """Take Euler's step along the transformer's velocities for ``guides``."""
        positive, negative = velocities[0].float(), velocities[-1].float()
        self.velocity = negative + self.guidance * (positive - negative)
        length = self.sigmas[self.done + 1] - self.sigmas[self.done]
        self.latents = self.latents.float() + length * self.velocity
        self.done += 1


class GlmDenoiser(LoadedComponent):
    """The transformer with the pipeline's schedule, see ``contract.Denoiser``."""

    follows = True

    def __init__(self, module: Any, checkpoint: Path, scheduler: Any, unit: int) -> None:
        super().__init__(module)
        config = module.config
        self._checkpoint = checkpoint
        self._scheduler = scheduler
        self._unit = unit * config.patch_size  # pixels per position, on either side
        self._patch: int = config.patch_size
        self._channels: int = config.in_channels
        self._width: int = config.text_embed_dim
        self._codes: int = config.prior_vq_quantizer_codebook_size
        self._device: torch.device = module.proj_out.weight.device
        self._dtype: torch.dtype = module.proj_out.weight.dtype

    def open(self, picture: ImageSpec, guides: Sequence[Tensor], prior: Tensor | None = None) -> GlmDenoising:
        """Draw the noise and compute the schedule. The negative guide counts only with a guidance above 1."""
        check_sides(picture, 2 * self._unit)
        if any(guide.dim() != 2 or guide.shape[1] != self._width or not len(guide) for guide in guides):
            raise errors.BadRequest(f"a prompt's embeddings must be [tokens, {self._width}] here", param="embeds")
        shape = picture.height // self._unit, picture.width // self._unit
        sigmas, times = self._noise_schedule(picture.steps, shape[0] * shape[1])
        guidance = GUIDANCE if picture.guidance is None else picture.guidance
        active_guides = guides if guidance > 1 else guides[:1]
        return GlmDenoising(
            shape=shape,
            latents=self._draw_noise(shape, picture.seed).to(self._device),
            prior=self._upsample_prior(prior, shape).to(self._device),
            guides=tuple(guide.to(self._device, self._dtype) for guide in active_guides),
            guidance=guidance,
            sigmas=sigmas,
            times=times,
        )

    @torch.no_grad()
    def step(self, batch: Sequence[GlmDenoising]) -> None:
        """Run a forward pass for prompts of each length, then each step.

        The library's mask only favours allowed positions, so prompts cannot be padded.
        """
        alike: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for place, one in enumerate(batch):
            for row, guide in enumerate(one.guides):
                alike[len(guide)].append((place, row))
        velocities: dict[tuple[int, int], Tensor] = {}
        for rows in alike.values():
            velocities.update(zip(rows, self._predict_velocities(batch, rows), strict=True))
        for place, one in enumerate(batch):
            one.advance([velocities[place, row] for row in range(one.rows)])

    def latents(self, denoising: GlmDenoising) -> Tensor:
        """Return [channels, 1, height, width] float32 on the CPU."""
        return denoising.latents[:, None].float().cpu()

    def palette(self) -> Tensor:
        """Return [channels + 1, 3]: the colour that each latent adds, and the base colour."""
        vae = load_decoder(self._checkpoint, str(self._device), "float32")
        size = (_latent_preview.IMAGE_COUNT, self._channels, _latent_preview.SIDE_LATENTS, _latent_preview.SIDE_LATENTS)
        samples = torch.randn(size, generator=torch.Generator().manual_seed(0))
        return _latent_preview.fit_palette(samples.permute(0, 2, 3, 1), vae.decode_colours(samples))

    def preview(self, denoising: GlmDenoising, palette: Tensor) -> Tensor:
        """Return a pixel for each latent, extrapolated along the last velocity."""
        latents = denoising.latents.float()
        if denoising.velocity is not None:
            latents = latents - denoising.sigmas[denoising.done] * denoising.velocity
        return _latent_preview.to_bytes(_latent_preview.append_constant(latents.permute(1, 2, 0).cpu()) @ palette)

    def _predict_velocities(self, batch: Sequence[GlmDenoising], rows: Sequence[tuple[int, int]]) -> Tensor:
        """Return a velocity for each of ``rows``: an image of the batch and one of its guides.

        All guides have the same length.
        """
        ones = [batch[place] for place, _ in rows]
        prior = torch.stack([one.prior for one in ones])
        # The negative guide does not follow a prior either.
        without_prior = torch.tensor([row > 0 for _, row in rows], device=self._device)
        size = [side * self._unit for side in ones[0].shape]
        [out] = self.module(
            hidden_states=torch.stack([one.latents for one in ones]).to(self._dtype),
            encoder_hidden_states=torch.stack([batch[place].guides[row] for place, row in rows]),
            prior_token_id=prior,
            prior_token_drop=without_prior[:, None].expand_as(prior),
            timestep=torch.stack([one.times[one.done] for one in ones]).to(self._device) - 1,
            target_size=torch.tensor([size] * len(rows), dtype=self._dtype, device=self._device),
            crop_coords=torch.zeros(len(rows), 2, dtype=self._dtype, device=self._device),
            return_dict=False,
        )
        velocities: Tensor = out
        return velocities

    def _upsample_prior(self, prior: Tensor | None, shape: tuple[int, int]) -> Tensor:
        """Return [positions]: each token of the prior repeated for four positions."""
        rows, columns = shape[0] // 2, shape[1] // 2
        if prior is None:
            raise errors.BadRequest("this model follows a prior; give it the prior's tokens", param="prior")
        tokens = prior.long()
        if tuple(prior.shape) != (1, 1, rows, columns) or not bool(
            ((tokens == prior) & (tokens >= 0) & (tokens < self._codes)).all()
        ):
            raise errors.BadRequest(
                f"the prior of this image must be tokens [1, 1, {rows}, {columns}] from 0 to {self._codes - 1}, "
                f"not these {list(prior.shape)}",
                param="prior",
            )
        return tokens[0, 0].repeat_interleave(2, 0).repeat_interleave(2, 1).flatten()

    def _noise_schedule(self, steps: int, positions: int) -> tuple[Tensor, Tensor]:
        """Return the pipeline's sigmas and timesteps; in larger images, noise decreases later."""
        from diffusers.pipelines.glm_image.pipeline_glm_image import calculate_shift

        config = self._scheduler.config
        most = config.num_train_timesteps
        if not 1 <= steps <= most:
            raise errors.BadRequest(f"steps must be 1 to {most}, not {steps}", param="steps")
        shift = calculate_shift(positions, config.base_image_seq_len, config.base_shift, config.max_shift)
        times = np.linspace(most, 1.0, steps + 1)[:-1].astype(np.int64).astype(np.float32)
        scheduler = copy.copy(self._scheduler)
        scheduler.set_timesteps(steps, timesteps=times, sigmas=times / most, mu=shift)
        return scheduler.sigmas, scheduler.timesteps

    def _draw_noise(self, shape: tuple[int, int], seed: int) -> Tensor:
        size = (1, self._channels, self._patch * shape[0], self._patch * shape[1])
        return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=self._dtype)[0]


def check_sides(picture: ImageSpec, unit: int) -> None:
    """Raise ``BadRequest`` unless it is an image with sides of ``unit`` multiples."""
    if picture.frames != 1:
        raise errors.BadRequest("this model generates images, not videos: frames must be 1", param="frames")
    for name, pixels in (("width", picture.width), ("height", picture.height)):
        if pixels % unit or pixels < unit:
            raise errors.BadRequest(f"{name} must be a multiple of {unit}, not {pixels}", param=name)


#: Most tokens of a text to write in the image. The pipeline silently truncates texts.
MAX_TEXT_TOKENS = 2048
#: Text to write in the image, by the pipeline's kinds of quotation marks, in its order.
_QUOTED = tuple(map(re.compile, (r"'([^']*)'", "\u201c([^\u201c\u201d]*)\u201d", r'"([^"]*)"', "「([^「」]*)」")))
#: Pixels on a side of one token of the prior, which is four tokens of the transformer.
TOKEN_SIDE_PIXELS = 32


@dataclass
class GlmTextEncoder(LoadedComponent):
    """Texts to write in an image, to hidden states of byT5.

    See ``contract.TextEncoder``.
    """

    tokenizer: Any

    twins = True

    def __post_init__(self) -> None:
        # This tokenizer does not mark all its special tokens as special.
        self._control = {*_language.control_tokens(self.tokenizer, ()), *self.tokenizer.all_special_tokens}

    def prepare(self, prompt: str, items: Sequence[Encoded] = ()) -> Prepared:
        """Tokenise the texts in quotation marks, one row each: ``ids`` [texts, T], ``mask`` [texts, T]."""
        if items:
            raise errors.BadRequest("this encoder reads only text, no images", param="items")
        texts = [text for marks in _QUOTED for text in marks.findall(prompt)]
        for token in self._control:
            if any(token in text for text in texts):
                raise errors.BadRequest(f"a text in the prompt holds the control token {token!r}", param="prompt")
        rows: list[list[int]] = self.tokenizer(texts or [""])["input_ids"]
        longest = max(map(len, rows))
        if longest > MAX_TEXT_TOKENS:
            raise errors.ContextTooLong(
                f"a text in the prompt has {longest} tokens; this model takes {MAX_TEXT_TOKENS}"
            )
        # The pipeline pads each text in front if there is an even number of them.
        rows = [[self.tokenizer.pad_token_id] * ((len(rows) + 1) % 2) + row for row in rows]
        ids = [torch.tensor(row) for row in rows]
        features = {
            "ids": _pad_rows(ids, self.tokenizer.pad_token_id),
            "mask": _pad_rows([torch.ones(len(row)) for row in ids]),
        }
        return Prepared("text", features, {"modality": "text", "n_tokens": sum(map(len, rows))})

    def prepare_negative(self, prompt: str, negative: str) -> Prepared:
        """Prepare a prompt without text. Raises ``BadRequest`` unless ``negative`` is blank."""
        if negative.strip():
            raise errors.BadRequest(
                "this model does not support negative prompts; leave it out", param="negative_prompt"
            )
        return self.prepare("")

    @torch.no_grad()
    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Run one forward pass over all texts of all prompts; a prompt's texts are concatenated, [T, W]."""
        if not batch:
            return []
        module: Any = self.module
        ids = _pad_rows([row for item in batch for row in item.features["ids"]], self.tokenizer.pad_token_id)
        mask = _pad_rows([row for item in batch for row in item.features["mask"]]).to(module.device)
        hidden = module(ids.to(module.device), attention_mask=mask).last_hidden_state
        counts = [len(item.features["ids"]) for item in batch]
        masked_rows = zip(hidden.split(counts), mask.bool().split(counts), strict=True)
        return [Encoded(rows[row_mask], item.meta) for (rows, row_mask), item in zip(masked_rows, batch, strict=True)]


class GlmPrior(TokenDenoiser):
    """The language model that generates a small image, then the requested one.

    See ``contract.PriorModel``.
    """

    axes = 3

    def __init__(self, module: Any, processor: Any) -> None:
        super().__init__(module, module.model.language_model, module.config.vq_config.num_embeddings)
        self._processor = processor
        self._control = _language.control_tokens(processor.tokenizer, ())
        self._context: int = module.config.text_config.max_position_embeddings

    @torch.no_grad()
    def open(self, picture: ImageSpec, prompt: str) -> TokenDenoising:
        """Read the prompt, see ``contract.PriorModel``."""
        check_sides(picture, TOKEN_SIDE_PIXELS)
        for token in self._control:
            if token in prompt:
                raise errors.BadRequest(f"the prompt holds the control token {token!r}; leave it out", param="prompt")
        ids, grids = self._encode_prompt(picture, prompt)
        if min(min(grid) for grid in grids) < 1:
            raise errors.BadRequest("one side of the image is too long for the other one", param="width")
        positions = _image_positions(ids.shape[1], grids[::-1])
        if ids.shape[1] + positions.shape[1] > self._context:
            raise errors.ContextTooLong(
                f"prompt and image have {ids.shape[1] + positions.shape[1]} tokens; this model takes {self._context}",
                param="prompt",
            )
        module: Any = self.module
        return self._start_denoising(
            module.get_input_embeddings()(ids.to(self._device)),
            positions,
            grid=grids[0],
            generator=torch.Generator().manual_seed(picture.seed),
        )

    def latents(self, denoising: TokenDenoising) -> Tensor:
        """Return the tokens [1, 1, rows, columns] of the image, float32 on the CPU.

        Those of the small image are left out.
        """
        rows, columns = denoising.grid
        return torch.tensor(denoising.chosen[-rows * columns :], dtype=torch.float32).view(1, 1, rows, columns)

    def _encode_prompt(self, picture: ImageSpec, prompt: str) -> tuple[Tensor, list[tuple[int, int]]]:
        """Return ids [1, T], and the grids of both images."""
        messages = [[{"role": "user", "content": [{"type": "text", "text": prompt}]}]]
        inputs = self._processor.apply_chat_template(
            messages,
            tokenize=True,
            target_h=picture.height,
            target_w=picture.width,
            return_dict=True,
            return_tensors="pt",
        )
        return inputs["input_ids"], [(rows, columns) for _, rows, columns in inputs["image_grid_thw"].tolist()]

    def _embed_tokens(self, tokens: Tensor) -> Tensor:
        module: Any = self.module
        embeddings: Tensor = module.get_input_embeddings()(tokens)
        return embeddings

    def _token_scores(self, hidden: Tensor) -> Tensor:
        module: Any = self.module
        scores: Tensor = module.lm_head(hidden)
        return scores


class GlmImage:
    """See ``contract.ModelFamily``."""

    name = "glm_image"
    components = ("text_encoder", "prior", "dit", "vae")

    def load(self, component: str, checkpoint: Path, device: str = "cpu", dtype: str = "float32") -> Any:
        """Load one component alone, of the VAE its decoder."""
        checkpoint = Path(checkpoint)
        match component:
            case "text_encoder":
                return _text_encoder(checkpoint, device, dtype)
            case "prior":
                return _load_prior(checkpoint, device, dtype)
            case "dit":
                return _load_denoiser(checkpoint, device, dtype)
            case "vae":
                return load_decoder(checkpoint, device, dtype)
        raise no_component(self.name, self.components, component)


def _text_encoder(checkpoint: Path, device: str, dtype: str) -> GlmTextEncoder:
    from transformers import AutoTokenizer, T5EncoderModel

    module = loading.load_model(T5EncoderModel, checkpoint / "text_encoder", device=device, dtype=dtype)
    return GlmTextEncoder(module, AutoTokenizer.from_pretrained(checkpoint / "tokenizer", local_files_only=True))


def _load_prior(checkpoint: Path, device: str, dtype: str) -> GlmPrior:
    from transformers import GlmImageForConditionalGeneration, GlmImageProcessor

    part = checkpoint / "vision_language_encoder"
    drop = ["model.visual", "model.vqmodel"]
    module = loading.load_model(GlmImageForConditionalGeneration, part, drop=drop, device=device, dtype=dtype)
    return GlmPrior(module, GlmImageProcessor.from_pretrained(checkpoint / "processor", local_files_only=True))


def _load_denoiser(checkpoint: Path, device: str, dtype: str) -> GlmDenoiser:
    # Import the pipeline, which has a function for each image, before a request waits for it.
    from diffusers import FlowMatchEulerDiscreteScheduler, GlmImagePipeline, GlmImageTransformer2DModel  # noqa: F401

    from omnibus_models import diffusers_loading

    module = diffusers_loading.load_model(
        GlmImageTransformer2DModel, checkpoint, "transformer", device=device, dtype=dtype
    )
    try:
        scheduler = FlowMatchEulerDiscreteScheduler.from_pretrained(checkpoint, subfolder="scheduler")
        # The VAE's scale is in its configuration; its weights are not needed.
        halvings = len(json.loads((checkpoint / "vae" / "config.json").read_text())["block_out_channels"]) - 1
    except (OSError, ValueError, KeyError) as error:
        raise errors.Fatal(f"{checkpoint} lacks the configuration of its scheduler or VAE: {error}") from error
    if scheduler.config.stochastic_sampling:
        raise errors.Fatal(f"{checkpoint} samples with noise in every step, which this family does not serve")
    return GlmDenoiser(module, checkpoint, scheduler, 2**halvings)


def _image_positions(begin: int, grids: Sequence[tuple[int, int]]) -> Tensor:
    """Return [3, tokens] of consecutive images after a prompt of ``begin`` tokens.

    The axes are time, rows and columns.
    """
    positions = []
    for rows, columns in grids:
        places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
        positions.append(torch.cat([torch.full((len(places), 1), 0), places], 1) + begin)
        begin += max(rows, columns)
    return torch.cat(positions).T


def _pad_rows(rows: Sequence[Tensor], value: float = 0) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)


FAMILY = GlmImage()
