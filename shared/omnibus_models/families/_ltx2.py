"""The transformer of LTX-2: noise to the latents of a video and its audio, jointly."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from msgspec import structs
from torch import Tensor

from omnibus import errors
from omnibus.families.templates import LTX2
from omnibus_models.contract import ImageSpec, LoadedComponent
from omnibus_models.families import _flow_schedule, _latent_preview

#: The block whose attention is skipped for perturbed guidance; the last one if there are fewer.
_PERTURBED_BLOCK = 28


class Pair(NamedTuple):
    """Corresponding values of the video and of its audio."""

    film: Any
    sound: Any


#: The pipeline's usual guidance: away from the negative prompt, from the output with less attention, and from the
#: output without cross-modal attention; then the share of the former deviation that is restored.
TEXT = Pair(3.0, 7.0)
PERTURBED, ISOLATED, RESTORED = 1.0, 3.0, 0.7


@dataclass(frozen=True)
class Geometry:
    """Sizes of latents.

    ``unit`` pixels on either side and ``frames`` in time are one latent. Audio has ``bins`` of ``channels``, ``rate``
    of them per second.
    """

    unit: int
    frames: int
    bins: int
    channels: int
    rate: float


@dataclass
class Ltx2Denoising:
    """One video in progress, see ``contract.Denoising``.

    ``shape`` is frames, rows and columns of latents, and then the length of the audio. ``latents`` are [tokens,
    channels] each, float32. ``guides`` [T, W] are the prompt and the negative prompt. ``places`` are the coordinates of
    the latents. ``text`` is the guidance away from the negative prompt; None disables all guidance. ``given`` is the
    number of tokens, at the start of the video, that belong to an image: no step changes them.
    """

    shape: tuple[int, int, int, int]
    latents: Pair
    guides: tuple[Tensor, ...]
    places: Pair
    text: Pair | None
    sigmas: Tensor
    times: Tensor
    perturbs: bool
    given: int = 0
    velocities: Pair | None = field(default=None, repr=False)
    done: int = 0

    @property
    def rows(self) -> int:
        return len(self.guides) + (0 if self.text is None else 1 + self.perturbs)

    @property
    def tokens(self) -> int:
        return len(self.latents.film) + len(self.latents.sound)

    @property
    def steps(self) -> int:
        return len(self.times)

    def state(self) -> Tensor:
        return torch.cat([part.float().cpu().reshape(-1) for part in self.latents])

    def resume(self, state: Tensor, steps: int) -> None:
        parts = state.split([part.numel() for part in self.latents])
        reshaped_parts = (part.view(old.shape).to(old) for part, old in zip(parts, self.latents, strict=True))
        self.latents, self.done = Pair(*reshaped_parts), steps

    def advance(self, predictions: dict[str, Pair]) -> None:
        """Take Euler's step along ``predictions`` velocities by kind of row.

        It uses the pipeline's precisions.
        """
        kinds = (0, 1)
        self.velocities = Pair(
            *(self._apply_guidance(kind, {name: pair[kind] for name, pair in predictions.items()}) for kind in kinds)
        )
        length = self.sigmas[self.done + 1] - self.sigmas[self.done]
        film, sound = (x + length * velocity for x, velocity in zip(self.latents, self.velocities, strict=True))
        if self.given:
            film = torch.cat([self.latents.film[: self.given], film[self.given :]])
        self.latents = Pair(film, sound)
        self.done += 1

    def _apply_guidance(self, kind: int, velocities: dict[str, Tensor]) -> Tensor:
        if self.text is None:
            return velocities["wanted"]
        from diffusers.pipelines.ltx2.pipeline_ltx2 import rescale_noise_cfg

        sigma, x = self.sigmas[self.done], self.latents[kind]
        ends = {name: x - velocity * sigma for name, velocity in velocities.items()}  # end point of each
        positive_end = guided_end = ends["wanted"]
        weights = {"unwanted": self.text[kind] - 1, "perturbed": PERTURBED, "isolated": ISOLATED - 1}
        for name, weight in weights.items():
            if name in ends:
                guided_end = guided_end + weight * (positive_end - ends[name])
        rescaled_end: Tensor = rescale_noise_cfg(guided_end[None], positive_end[None], guidance_rescale=RESTORED)[0]
        return (x - rescaled_end) / sigma


class Ltx2Denoiser(LoadedComponent):
    """The transformer with the pipeline's schedule, see ``contract.Denoiser``."""

    edits = True
    sounds = True

    def __init__(self, module: Any, scheduler: Any, geometry: Geometry, palette: Any) -> None:
        super().__init__(module)
        config = module.config
        self._scheduler = scheduler
        self._geometry = geometry
        self._palette = palette
        self._channels: int = config.in_channels
        self._patch: tuple[int, int] = (config.patch_size, config.patch_size_t)
        self._widths = (
            Pair(config.caption_channels, config.caption_channels)
            if config.use_prompt_embeddings
            else Pair(config.cross_attention_dim, config.audio_cross_attention_dim)
        )
        self._block = min(_PERTURBED_BLOCK, config.num_layers - 1)
        self._perturbs = bool(config.perturbed_attn)
        self._device: torch.device = module.proj_out.weight.device
        self._dtype: torch.dtype = module.proj_out.weight.dtype
        self.unit = geometry.unit
        # A side must have at least two latents.
        self._limits = structs.replace(
            LTX2,
            min_side=max(LTX2.min_side, 2 * geometry.unit),
            frame_group=geometry.frames,
            audio_rate=geometry.rate,
        )

    @property
    def default_size(self) -> tuple[int, int]:
        """Default width and height of the pipeline, in pixels."""
        return 768, 512

    def open(self, picture: ImageSpec, guides: Sequence[Tensor], image: Tensor | None = None) -> Ltx2Denoising:
        """Draw the noise and compute the schedule. A guidance of at most 1 disables all guidance.

        ``image`` [channels, 1, rows, columns] is the first latent frame of a ``FrameEncoder``. It is present from the
        first step and does not change, as in ``LTX2ImageToVideoPipeline``.
        """
        shape = self._latent_shape(picture)
        width = sum(self._widths)
        if any(guide.dim() != 2 or guide.shape[1] != width or not len(guide) for guide in guides):
            raise errors.BadRequest(f"a prompt's embeddings must be [tokens, {width}] here", param="embeds")
        frames, rows, columns, _ = shape
        sigmas, times = _flow_schedule.laid_out(self._scheduler, picture.steps, frames * rows * columns)
        picture_guidance = picture.guidance
        plain = picture_guidance is not None and picture_guidance <= 1
        latents = self._draw_noise(shape, picture.seed)
        frame_tokens = 0 if image is None else rows * columns
        if image is not None:
            latents = latents._replace(
                film=torch.cat([self._pack_first_frame(image, shape), latents.film[frame_tokens:]])
            )
        return Ltx2Denoising(
            shape=shape,
            latents=latents,
            given=frame_tokens,
            guides=tuple(guide.to(self._device, self._dtype) for guide in (guides[:1] if plain else guides)),
            places=self._axis_positions(shape, picture.fps),
            text=None if plain else TEXT if picture_guidance is None else TEXT._replace(film=picture_guidance),
            sigmas=sigmas,
            times=times,
            perturbs=self._perturbs,
        )

    @torch.no_grad()
    def step(self, batch: Sequence[Ltx2Denoising]) -> None:
        """Run at most two forward passes for all videos: with and without cross-modal attention."""
        usual = [
            (each, name, guide)
            for each in batch
            for name, guide in zip(("wanted", "unwanted"), each.guides, strict=False)
        ]
        guided_rows = [(each, each.guides[0]) for each in batch if each.text is not None]
        usual += [(each, "perturbed", guide) for each, guide in guided_rows if each.perturbs]
        alone = [(each, "isolated", guide) for each, guide in guided_rows]
        velocities: dict[int, dict[str, Pair]] = {id(each): {} for each in batch}
        for rows, is_isolated in ((usual, False), (alone, True)):
            for (each, name, _), pair in zip(rows, self._predict_velocities(rows, is_isolated), strict=True):
                velocities[id(each)][name] = pair
        for each in batch:
            each.advance(velocities[id(each)])

    def latents(self, denoising: Ltx2Denoising) -> Tensor:
        """Return [channels, frames, height, width] float32 on the CPU."""
        return self._unpack_latents(denoising.latents.film, denoising.shape).cpu()

    def audio_latents(self, denoising: Ltx2Denoising) -> Tensor:
        """Return [channels, time, bins] float32 on the CPU."""
        from diffusers import LTX2Pipeline

        length, bins = denoising.shape[3], self._geometry.bins
        audio: Tensor = LTX2Pipeline._unpack_audio_latents(denoising.latents.sound[None], length, bins)
        return audio[0].cpu()

    def palette(self) -> Tensor:
        """Return [channels + 1, 3]: colours that latents add to a plain surface, and its base colour."""
        colours: Tensor = self._palette(self._channels)
        return colours

    def preview(self, denoising: Ltx2Denoising, palette: Tensor) -> Tensor:
        """Return a pixel per latent of the middle frame, extrapolated by velocity."""
        latents = denoising.latents.film
        if denoising.velocities is not None:
            latents = latents - denoising.sigmas[denoising.done] * denoising.velocities.film
        film = self._unpack_latents(latents, denoising.shape)
        return _latent_preview.render_preview(film[:, film.shape[1] // 2], palette)

    def _predict_velocities(self, rows: Sequence[tuple[Ltx2Denoising, str, Tensor]], isolated: bool) -> list[Pair]:
        """Return velocities of video and audio for each row, float32."""
        if not rows:
            return []
        films, guides = [each for each, *_ in rows], [guide for *_, guide in rows]
        texts = torch.nn.utils.rnn.pad_sequence(list(guides), batch_first=True)
        lengths = torch.tensor([len(guide) for guide in guides], device=self._device)
        mask = torch.arange(texts.shape[1], device=self._device) < lengths[:, None]
        unperturbed = torch.tensor([name != "perturbed" for _, name, _ in rows], device=self._device, dtype=self._dtype)
        times = torch.stack([each.times[each.done] for each in films]).to(self._device)
        frames, height, width, length = films[0].shape
        outputs = self.module(
            hidden_states=torch.stack([each.latents.film for each in films]).to(self._dtype),
            audio_hidden_states=torch.stack([each.latents.sound for each in films]).to(self._dtype),
            encoder_hidden_states=texts[..., : self._widths.film],
            audio_encoder_hidden_states=texts[..., self._widths.film :],
            timestep=self._video_times(films, times),
            audio_timestep=times,
            sigma=times,
            encoder_attention_mask=mask,
            audio_encoder_attention_mask=mask,
            num_frames=frames,
            height=height,
            width=width,
            audio_num_frames=length,
            video_coords=torch.stack([each.places.film for each in films]),
            audio_coords=torch.stack([each.places.sound for each in films]),
            isolate_modalities=isolated,
            spatio_temporal_guidance_blocks=None if unperturbed.all() else [self._block],
            perturbation_mask=None if unperturbed.all() else unperturbed,
            use_cross_timestep=True,
            return_dict=False,
        )
        return [Pair(*pair) for pair in zip(*(out.float() for out in outputs), strict=True)]

    def _video_times(self, films: Sequence[Ltx2Denoising], times: Tensor) -> Tensor:
        """Return timesteps, [videos], or [videos, tokens] if some tokens have no noise."""
        if not any(each.given for each in films):
            return times
        spread = times[:, None].repeat(1, len(films[0].latents.film))
        for row, each in zip(spread, films, strict=True):
            row[: each.given] = 0
        return spread

    def _pack_first_frame(self, image: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
        """Return ``image`` as tokens [rows * columns, channels]. Raises ``BadRequest`` for another size."""
        expected_shape = (self._channels, 1, *shape[1:3])
        if tuple(image.shape) != expected_shape:
            raise errors.BadRequest(
                f"the latents of the first frame must be {list(expected_shape)} for this size, not {list(image.shape)}",
                param="image",
            )
        return image.flatten(1).T.float().to(self._device)

    def _latent_shape(self, picture: ImageSpec) -> tuple[int, int, int, int]:
        own, limits = self._geometry, self._limits
        limits.check_frames(picture.width, picture.height, picture.frames, picture.fps)
        length = limits.audio_length(picture.frames, picture.fps)
        return (picture.frames - 1) // own.frames + 1, picture.height // own.unit, picture.width // own.unit, length

    def _draw_noise(self, shape: tuple[int, int, int, int], seed: int) -> Pair:
        from diffusers import LTX2Pipeline

        own = self._geometry
        generator = torch.Generator().manual_seed(seed)
        film = torch.randn((1, self._channels, *shape[:3]), generator=generator)
        sound = torch.randn((1, own.channels, shape[3], own.bins), generator=generator)
        packed_film = LTX2Pipeline._pack_latents(film, *self._patch)
        return Pair(packed_film[0].to(self._device), LTX2Pipeline._pack_audio_latents(sound)[0].to(self._device))

    def _unpack_latents(self, latents: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
        from diffusers import LTX2Pipeline

        film: Tensor = LTX2Pipeline._unpack_latents(latents[None], *shape[:3], *self._patch)
        return film[0]

    def _axis_positions(self, shape: tuple[int, int, int, int], fps: float) -> Pair:
        module: Any = self.module
        film = module.rope.prepare_video_coords(1, *shape[:3], self._device, fps=fps)
        return Pair(film[0], module.audio_rope.prepare_audio_coords(1, shape[3], self._device)[0])
