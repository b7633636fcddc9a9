"""GLM-Image: a prior that draws a picture roughly, token by token, and a diffusion transformer that follows it.

``GlmImagePipeline``: a glyph encoder for what is to be written in the picture (byT5), the prior
(``vision_language_encoder``), the transformer and the decoder of a VAE.
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
from omnibus_models.contract import Encoded, Loaded, Picture, Prepared
from omnibus_models.families import _colours, _language
from omnibus_models.families._tokens import Drawer, Drawing

#: Most bytes of a text that is to be written. The pipeline cuts texts off without a word.
TOKENS = 2048
#: The pipeline's usual guidance.
GUIDANCE = 1.5
#: What is to be written, by the kinds of quotation marks that the pipeline knows, in its order.
_QUOTED = tuple(map(re.compile, (r"'([^']*)'", "\u201c([^\u201c\u201d]*)\u201d", r'"([^"]*)"', "「([^「」]*)」")))
#: Pixels on a side of what is one token for the prior. For the transformer it is four.
TOKEN_SIDE = 32


@dataclass
class TextEncoder(Loaded):
    """What is to be written in a picture to hidden states of a byT5 encoder, see ``contract.TextEncoder``."""

    tokenizer: Any

    twins = True

    def __post_init__(self) -> None:
        # This tokenizer does not tell of all that it adds that it is special.
        self._control = {*_language.control_tokens(self.tokenizer, ()), *self.tokenizer.all_special_tokens}

    def prepare(self, prompt: str, items: Sequence[Encoded] = ()) -> Prepared:
        """The texts in quotation marks, one row each: ``ids`` [texts, T], ``mask`` [texts, T]."""
        if items:
            raise errors.BadRequest("this encoder reads text alone, no pictures", param="items")
        texts = [text for marks in _QUOTED for text in marks.findall(prompt)]
        for token in self._control:
            if any(token in text for text in texts):
                raise errors.BadRequest(f"a text in the prompt holds the control token {token!r}", param="prompt")
        rows: list[list[int]] = self.tokenizer(texts or [""])["input_ids"]
        longest = max(map(len, rows))
        if longest > TOKENS:
            raise errors.ContextTooLong(f"a text in the prompt has {longest} tokens; this model takes {TOKENS}")
        # The pipeline puts something before each text whenever there is an even number of them.
        rows = [[self.tokenizer.pad_token_id] * ((len(rows) + 1) % 2) + row for row in rows]
        ids = [torch.tensor(row) for row in rows]
        features = {
            "ids": _padded(ids, self.tokenizer.pad_token_id),
            "mask": _padded([torch.ones(len(row)) for row in ids]),
        }
        return Prepared("text", features, {"modality": "text", "n_tokens": sum(map(len, rows))})

    def unwanted(self, prompt: str, negative: str) -> Prepared:
        """No text. Raises ``BadRequest`` for a negative prompt that says something."""
        if negative.strip():
            raise errors.BadRequest("this model knows no negative prompt; leave it out", param="negative_prompt")
        return self.prepare("")

    @torch.no_grad()
    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """One forward pass over all texts of all prompts; those of one prompt follow one another, [T, W]."""
        if not batch:
            return []
        module: Any = self.module
        ids = _padded([row for item in batch for row in item.features["ids"]], self.tokenizer.pad_token_id)
        mask = _padded([row for item in batch for row in item.features["mask"]]).to(module.device)
        hidden = module(ids.to(module.device), attention_mask=mask).last_hidden_state
        counts = [len(item.features["ids"]) for item in batch]
        chosen = zip(hidden.split(counts), mask.bool().split(counts), strict=True)
        return [Encoded(rows[kept], item.meta) for (rows, kept), item in zip(chosen, batch, strict=True)]


class Prior(Drawer):
    """The language model that draws a picture in tokens, first a small one, then the one that is asked for.

    See ``contract.Prior``.
    """

    axes = 3

    def __init__(self, module: Any, processor: Any) -> None:
        super().__init__(module, module.model.language_model, module.config.vq_config.num_embeddings)
        self._processor = processor
        self._control = _language.control_tokens(processor.tokenizer, ())
        self._context: int = module.config.text_config.max_position_embeddings

    @torch.no_grad()
    def open(self, picture: Picture, prompt: str) -> Drawing:
        """Read the prompt, see ``contract.Prior``."""
        _check_sides(picture, TOKEN_SIDE)
        for token in self._control:
            if token in prompt:
                raise errors.BadRequest(f"the prompt holds the control token {token!r}; leave it out", param="prompt")
        ids, grids = self._asked(picture, prompt)
        if min(min(grid) for grid in grids) < 1:
            raise errors.BadRequest("one side of the picture is too long for the other one", param="width")
        positions = _positions(ids.shape[1], grids[::-1])
        if ids.shape[1] + positions.shape[1] > self._context:
            raise errors.ContextTooLong(
                f"prompt and picture have {ids.shape[1] + positions.shape[1]} tokens; this model takes {self._context}",
                param="prompt",
            )
        module: Any = self.module
        return self._draw(
            module.get_input_embeddings()(ids.to(self._device)),
            positions,
            grid=grids[0],
            generator=torch.Generator().manual_seed(picture.seed),
        )

    def latents(self, denoising: Drawing) -> Tensor:
        """[1, 1, rows, columns] float32 on the CPU: the tokens of the picture, those of the small one left out."""
        rows, columns = denoising.grid
        return torch.tensor(denoising.chosen[-rows * columns :], dtype=torch.float32).view(1, 1, rows, columns)

    def _asked(self, picture: Picture, prompt: str) -> tuple[Tensor, list[tuple[int, int]]]:
        """Ids [1, T], and the grids of the picture and of the small one."""
        said = [[{"role": "user", "content": [{"type": "text", "text": prompt}]}]]
        inputs = self._processor.apply_chat_template(
            said, tokenize=True, target_h=picture.height, target_w=picture.width, return_dict=True, return_tensors="pt"
        )
        return inputs["input_ids"], [(rows, columns) for _, rows, columns in inputs["image_grid_thw"].tolist()]

    def _embed(self, tokens: Tensor) -> Tensor:
        module: Any = self.module
        embedded: Tensor = module.get_input_embeddings()(tokens)
        return embedded

    def _scores(self, hidden: Tensor) -> Tensor:
        module: Any = self.module
        scores: Tensor = module.lm_head(hidden)
        return scores


@dataclass
class Denoising:
    """One picture in the making, see ``contract.Denoising``.

    ``latents`` are [channels, height, width], ``prior`` [positions] the tokens to follow, ``guides`` [T, W] each the
    texts of the prompt and no text. ``sigmas`` [steps + 1] and ``times`` [steps] are float32 on the CPU.
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

    def advance(self, velocities: Sequence[Tensor]) -> None:
        """Euler's step along what the transformer said for each of ``guides``."""
        wanted, unwanted = velocities[0].float(), velocities[-1].float()
        self.velocity = unwanted + self.guidance * (wanted - unwanted)
        length = self.sigmas[self.done + 1] - self.sigmas[self.done]
        self.latents = self.latents.float() + length * self.velocity
        self.done += 1


class Denoiser(Loaded):
    """The transformer with the pipeline's schedule, see ``contract.Denoiser``."""

    follows = True

    def __init__(self, module: Any, checkpoint: Path, scheduler: Any, unit: int) -> None:
        super().__init__(module)
        config = module.config
        self._checkpoint = checkpoint
        self._scheduler = scheduler
        self._unit = unit * config.patch_size  # pixels on either side of what is one position
        self._patch: int = config.patch_size
        self._channels: int = config.in_channels
        self._width: int = config.text_embed_dim
        self._codes: int = config.prior_vq_quantizer_codebook_size
        self._device: torch.device = module.proj_out.weight.device
        self._dtype: torch.dtype = module.proj_out.weight.dtype

    def open(self, picture: Picture, guides: Sequence[Tensor], prior: Tensor | None = None) -> Denoising:
        """Draw the noise and lay out the steps. What is guided away from counts only with a guidance above 1."""
        _check_sides(picture, 2 * self._unit)
        if any(guide.dim() != 2 or guide.shape[1] != self._width or not len(guide) for guide in guides):
            raise errors.BadRequest(f"a prompt's embeddings must be [tokens, {self._width}] here", param="embeds")
        shape = picture.height // self._unit, picture.width // self._unit
        sigmas, times = self._schedule(picture.steps, shape[0] * shape[1])
        guidance = GUIDANCE if picture.guidance is None else picture.guidance
        chosen = guides if guidance > 1 else guides[:1]
        return Denoising(
            shape=shape,
            latents=self._noise(shape, picture.seed).to(self._device),
            prior=self._followed(prior, shape).to(self._device),
            guides=tuple(guide.to(self._device, self._dtype) for guide in chosen),
            guidance=guidance,
            sigmas=sigmas,
            times=times,
        )

    @torch.no_grad()
    def step(self, batch: Sequence[Denoising]) -> None:
        """A forward pass for all prompts of each length, then each picture's own step.

        The library's mask only favours what it should allow alone, so prompts cannot be filled up.
        """
        alike: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for place, one in enumerate(batch):
            for row, guide in enumerate(one.guides):
                alike[len(guide)].append((place, row))
        found: dict[tuple[int, int], Tensor] = {}
        for rows in alike.values():
            found.update(zip(rows, self._velocities(batch, rows), strict=True))
        for place, one in enumerate(batch):
            one.advance([found[place, row] for row in range(one.rows)])

    def latents(self, denoising: Denoising) -> Tensor:
        """[channels, 1, height, width] float32 on the CPU."""
        return denoising.latents[:, None].float().cpu()

    def palette(self) -> Tensor:
        """[channels + 1, 3]: the colour that each latent adds, and that of nothing."""
        decoder = _decoder(self._checkpoint, str(self._device), "float32")
        size = (_colours.COUNT, self._channels, _colours.SIDE, _colours.SIDE)
        drawn = torch.randn(size, generator=torch.Generator().manual_seed(0))
        return _colours.fitted(drawn.permute(0, 2, 3, 1), decoder.paint(drawn))

    def preview(self, denoising: Denoising, palette: Tensor) -> Tensor:
        """A pixel for each latent, of where the last velocity would lead if it stayed as it is."""
        latents = denoising.latents.float()
        if denoising.velocity is not None:
            latents = latents - denoising.sigmas[denoising.done] * denoising.velocity
        return _colours.to_bytes(_colours.with_plain(latents.permute(1, 2, 0).cpu()) @ palette)

    def _velocities(self, batch: Sequence[Denoising], rows: Sequence[tuple[int, int]]) -> Tensor:
        """One for each of ``rows``: a picture of the batch, and which of its guides, all equally long."""
        ones = [batch[place] for place, _ in rows]
        prior = torch.stack([one.prior for one in ones])
        # What is guided away from follows no prior either.
        dropped = torch.tensor([row > 0 for _, row in rows], device=self._device)
        size = [side * self._unit for side in ones[0].shape]
        [out] = self.module(
            hidden_states=torch.stack([one.latents for one in ones]).to(self._dtype),
            encoder_hidden_states=torch.stack([batch[place].guides[row] for place, row in rows]),
            prior_token_id=prior,
            prior_token_drop=dropped[:, None].expand_as(prior),
            timestep=torch.stack([one.times[one.done] for one in ones]).to(self._device) - 1,
            target_size=torch.tensor([size] * len(rows), dtype=self._dtype, device=self._device),
            crop_coords=torch.zeros(len(rows), 2, dtype=self._dtype, device=self._device),
            return_dict=False,
        )
        velocities: Tensor = out
        return velocities

    def _followed(self, prior: Tensor | None, shape: tuple[int, int]) -> Tensor:
        """[positions]: each token of the prior for four positions."""
        rows, columns = shape[0] // 2, shape[1] // 2
        if prior is None:
            raise errors.BadRequest("this model follows a prior; give it the prior's tokens", param="prior")
        tokens = prior.long()
        if tuple(prior.shape) != (1, 1, rows, columns) or not bool(
            ((tokens == prior) & (tokens >= 0) & (tokens < self._codes)).all()
        ):
            raise errors.BadRequest(
                f"the prior of this picture must be tokens [1, 1, {rows}, {columns}] from 0 to {self._codes - 1}, "
                f"not these {list(prior.shape)}",
                param="prior",
            )
        return tokens[0, 0].repeat_interleave(2, 0).repeat_interleave(2, 1).flatten()

    def _schedule(self, steps: int, positions: int) -> tuple[Tensor, Tensor]:
        """The pipeline's sigmas and timesteps; larger pictures stay longer in the noise."""
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

    def _noise(self, shape: tuple[int, int], seed: int) -> Tensor:
        size = (1, self._channels, self._patch * shape[0], self._patch * shape[1])
        return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=self._dtype)[0]


class ImageDecoder(Loaded):
    """The decoder of the VAE, see ``contract.ImageDecoder``."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        config = module.config
        self._weight = next(module.decoder.parameters())
        self._channels: int = config.latent_channels
        self._mean, self._scale = (
            torch.tensor(values).view(1, -1, 1, 1).to(self._weight)
            for values in (config.latents_mean, config.latents_std)
        )

    def decode(self, latents: Tensor) -> Tensor:
        """[channels, 1, height, width] to uint8 [H, W, 3] on the CPU."""
        if latents.dim() != 4 or latents.shape[:2] != (self._channels, 1):
            raise errors.BadRequest(
                f"this decoder takes latents [{self._channels}, 1, height, width], not {list(latents.shape)}",
                param="latents",
            )
        return _colours.to_bytes(self.paint(latents.transpose(0, 1))[0].permute(1, 2, 0).cpu())

    @torch.no_grad()
    def paint(self, latents: Tensor) -> Tensor:
        """[B, channels, height, width] to colours, float32 [B, 3, H, W] in [0, 1]."""
        module: Any = self.module
        out = module.decode(latents.to(self._weight) * self._scale + self._mean, return_dict=False)[0]
        colours: Tensor = (out * 0.5 + 0.5).clamp(0, 1).float()
        return colours


class GlmImage:
    """See ``contract.Family``."""

    name = "glm_image"
    components = ("text_encoder", "prior", "dit", "vae")

    def load(self, component: str, checkpoint: Path, device: str = "cpu", dtype: str = "float32") -> Any:
        """Load one component alone, of the VAE its decoder."""
        checkpoint = Path(checkpoint)
        match component:
            case "text_encoder":
                return _text_encoder(checkpoint, device, dtype)
            case "prior":
                return _prior(checkpoint, device, dtype)
            case "dit":
                return _denoiser(checkpoint, device, dtype)
            case "vae":
                return _decoder(checkpoint, device, dtype)
        raise errors.NotFound(f"{self.name} has no component {component!r}; it has {', '.join(self.components)}")


def _text_encoder(checkpoint: Path, device: str, dtype: str) -> TextEncoder:
    from transformers import AutoTokenizer, T5EncoderModel

    module = loading.load(T5EncoderModel, checkpoint / "text_encoder", device=device, dtype=dtype)
    return TextEncoder(module, AutoTokenizer.from_pretrained(checkpoint / "tokenizer", local_files_only=True))


def _prior(checkpoint: Path, device: str, dtype: str) -> Prior:
    from transformers import GlmImageForConditionalGeneration, GlmImageProcessor

    part = checkpoint / "vision_language_encoder"
    drop = ["model.visual", "model.vqmodel"]
    module = loading.load(GlmImageForConditionalGeneration, part, drop=drop, device=device, dtype=dtype)
    return Prior(module, GlmImageProcessor.from_pretrained(checkpoint / "processor", local_files_only=True))


def _denoiser(checkpoint: Path, device: str, dtype: str) -> Denoiser:
    # The pipeline is imported for a function that each picture needs: here nobody waits for it.
    from diffusers import FlowMatchEulerDiscreteScheduler, GlmImagePipeline, GlmImageTransformer2DModel  # noqa: F401

    from omnibus_models import diffusion

    module = diffusion.load(GlmImageTransformer2DModel, checkpoint, "transformer", device=device, dtype=dtype)
    try:
        scheduler = FlowMatchEulerDiscreteScheduler.from_pretrained(checkpoint, subfolder="scheduler")
        # The VAE's scale is in its configuration; its weights are not needed.
        halvings = len(json.loads((checkpoint / "vae" / "config.json").read_text())["block_out_channels"]) - 1
    except (OSError, ValueError, KeyError) as error:
        raise errors.Fatal(f"{checkpoint} lacks the configuration of its scheduler or VAE: {error}") from error
    if scheduler.config.stochastic_sampling:
        raise errors.Fatal(f"{checkpoint} samples with noise in every step, which this family does not serve")
    return Denoiser(module, checkpoint, scheduler, 2**halvings)


def _decoder(checkpoint: Path, device: str, dtype: str) -> ImageDecoder:
    from diffusers import AutoencoderKL

    from omnibus_models import diffusion

    drop = ("encoder", "quant_conv")
    return ImageDecoder(diffusion.load(AutoencoderKL, checkpoint, "vae", drop=drop, device=device, dtype=dtype))


def _check_sides(picture: Picture, unit: int) -> None:
    if picture.frames != 1:
        raise errors.BadRequest("this model makes pictures, not videos: frames must be 1", param="frames")
    for name, pixels in (("width", picture.width), ("height", picture.height)):
        if pixels % unit or pixels < unit:
            raise errors.BadRequest(f"{name} must be a multiple of {unit}, not {pixels}", param=name)


def _positions(begin: int, grids: Sequence[tuple[int, int]]) -> Tensor:
    """[3, tokens] of pictures one after the other, behind a prompt of ``begin`` tokens: time, rows and columns."""
    found = []
    for rows, columns in grids:
        places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
        found.append(torch.cat([torch.full((len(places), 1), 0), places], 1) + begin)
        begin += max(rows, columns)
    return torch.cat(found).T


def _padded(rows: Sequence[Tensor], value: float = 0) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)


FAMILY = GlmImage()
