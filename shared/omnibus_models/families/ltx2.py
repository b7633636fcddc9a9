"""LTX-2: videos with audio (``LTX2Pipeline``).

Components are the text encoder, the encoder of a first frame, the transformer, and the decoders of video and audio. The
text encoder is Gemma 3 with its connectors, since the states of all its layers would be many times their output. The
audio decoder has a vocoder.

The encoder of LTX-2's VAE: an image to the first latent frame.

It follows ``LTX2ImageToVideoPipeline``.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from omnibus import errors
from omnibus_models import loading, media
from omnibus_models.contract import NO_CHANGE, Encoded, ImageChange, ImageSpec, LoadedComponent, Prepared, no_component
from omnibus_models.families import _flow_schedule, _language, _latent_preview
from omnibus_models.families._ltx2 import Geometry, Ltx2Denoiser

#: Shortest side of an image in pixels, since H.264 halves the resolution of colours.
_MIN_SIDE = 2
#: Longest side in pixels that x264 compresses.
_MAX_SIDE = 16384


@dataclass
class Ltx2FrameEncoder(LoadedComponent):
    """See ``contract.FrameEncoder``. Latents have mean 0 and deviation 1, as in the transformer."""

    unit: int
    limits: media.MediaDecodeLimits

    def prepare(self, data: memoryview, picture: ImageSpec, change: ImageChange = NO_CHANGE) -> Tensor:
        """Decode one file, compress it like training data, and resize it."""
        if change != NO_CHANGE:
            raise errors.BadRequest("a first frame is used as a whole; leave mask and strength out", param="mask")
        from diffusers.pipelines.ltx2.utils import DEFAULT_IMAGE_CRF, apply_image_conditioning_crf
        from diffusers.video_processor import VideoProcessor

        image = media.decode_image(data, self.limits)
        if min(image.size) < _MIN_SIDE:
            raise errors.BadMedia(f"an image must have sides of at least {_MIN_SIDE} pixels", param="media")
        if max(image.size) > _MAX_SIDE:
            raise errors.BadMedia(f"an image must have sides of at most {_MAX_SIDE} pixels", param="media")
        array = apply_image_conditioning_crf(np.asarray(image.convert("RGB")), DEFAULT_IMAGE_CRF)
        processor = VideoProcessor(vae_scale_factor=self.unit, resample="bilinear")
        pixels: Tensor = processor.preprocess(Image.fromarray(array), height=picture.height, width=picture.width)[0]
        return pixels

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """Encode [3, height, width] to [channels, 1, rows, columns]: the normalised mode of the VAE's distribution."""
        from diffusers import LTX2ImageToVideoPipeline

        module: Any = self.module
        weight = next(module.encoder.parameters())
        raw_latents = module.encode(pixels[None, :, None].to(weight)).latent_dist.mode().float()
        latents: Tensor = LTX2ImageToVideoPipeline._normalize_latents(
            raw_latents, module.latents_mean, module.latents_std
        )
        return latents[0].cpu()


def load_frame_encoder(
    checkpoint: Path, device: str, dtype: str, limits: media.MediaDecodeLimits = media.DEFAULT
) -> Ltx2FrameEncoder:
    """Load the encoder. Raises ``Fatal`` for a checkpoint without these weights."""
    from diffusers import AutoencoderKLLTX2Video

    from omnibus_models import diffusers_loading

    module = diffusers_loading.load_model(
        AutoencoderKLLTX2Video, checkpoint, "vae", drop=("decoder",), device=device, dtype=dtype
    )
    return Ltx2FrameEncoder(module, module.spatial_compression_ratio, limits)


#: Tokens that every prompt is padded to, in front. The pipeline silently truncates longer ones.
PROMPT_TOKENS = 1024


@dataclass
class Ltx2TextEncoder(LoadedComponent):
    """Encodes prompts to guide video and audio, [tokens, video width + audio width].

    See ``contract.TextEncoder``. ``module`` has the ``language`` model and its ``connectors``.
    """

    tokenizer: Any

    films = True

    def __post_init__(self) -> None:
        self._control = _language.control_tokens(self.tokenizer, ())

    def prepare(self, prompt: str, items: Sequence[Encoded] = ()) -> Prepared:
        """Tokenise: ``ids`` [T]."""
        if items:
            raise errors.BadRequest("this model reads only text, no images", param="items")
        for token in self._control:
            if token in prompt:
                raise errors.BadRequest(f"the prompt holds the control token {token!r}; leave it out", param="prompt")
        ids = self.tokenizer(prompt.strip())["input_ids"]
        if len(ids) > PROMPT_TOKENS:
            raise errors.ContextTooLong(
                f"the prompt has {len(ids)} tokens; this model takes {PROMPT_TOKENS}", param="prompt"
            )
        return Prepared("text", {"ids": torch.tensor(ids)}, {"modality": "text", "n_tokens": len(ids)})

    @torch.no_grad()
    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Run the language model once. Padding of short prompts follows them and is never attended to."""
        if not batch:
            return []
        module: Any = self.module
        ids = [item.features["ids"] for item in batch]
        device = next(module.connectors.parameters()).device
        padded_ids = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True).to(device)
        # In the pipeline a prompt ends at the last position.
        begins = torch.tensor([PROMPT_TOKENS - len(one) for one in ids], device=device)
        positions = begins[:, None] + torch.arange(padded_ids.shape[1], device=device)
        states = module.language.get_decoder()(
            input_ids=padded_ids, position_ids=positions, use_cache=False, output_hidden_states=True
        ).hidden_states
        return [
            Encoded(self._connect_states(torch.stack([state[place, : len(one)] for state in states], -1)), item.meta)
            for place, (one, item) in enumerate(zip(ids, batch, strict=True))
        ]

    def _connect_states(self, states: Tensor) -> Tensor:
        """Run ``states`` [T, H, layers] of one prompt through the connectors.

        Prompts are processed one by one, since states are large.
        """
        module: Any = self.module
        padded_states = states.new_zeros(1, PROMPT_TOKENS, *states.shape[1:])
        padded_states[0, PROMPT_TOKENS - len(states) :] = states
        mask = torch.arange(PROMPT_TOKENS, device=states.device)[None] >= PROMPT_TOKENS - len(states)
        film, sound, token_mask = module.connectors(padded_states.flatten(2), mask.long(), padding_side="left")
        return torch.cat([film[0], sound[0]], -1)[token_mask[0].bool()]


class Ltx2VideoDecoder(LoadedComponent):
    """The decoder of the video's VAE, see ``contract.VideoDecoder``."""

    def decode(self, latents: Tensor) -> Tensor:
        """Decode [channels, frames, height, width] to uint8 [frames', H, W, 3] on CPU."""
        module: Any = self.module
        channels = module.config.latent_channels
        if latents.dim() != 4 or len(latents) != channels or not latents.shape[1] or min(latents.shape[2:]) < 2:
            raise errors.BadRequest(
                f"this decoder takes latents [{channels}, frames, height, width] with sides from 2 on, "
                f"not {list(latents.shape)}",
                param="latents",
            )
        return _latent_preview.to_bytes(self.decode_colours(latents[None])[0].permute(1, 2, 3, 0)).cpu()

    @torch.no_grad()
    def decode_colours(self, latents: Tensor) -> Tensor:
        """Decode [B, channels, frames, height, width] to float32 [B, 3, frames', H, W].

        Colours are in [0, 1].
        """
        from diffusers import LTX2Pipeline

        module: Any = self.module
        weight = next(module.decoder.parameters())
        plain = LTX2Pipeline._denormalize_latents(
            latents.to(weight.device), module.latents_mean, module.latents_std, module.config.scaling_factor
        )
        out = module.decode(plain.to(weight), None, return_dict=False)[0]
        colours: Tensor = (out * 0.5 + 0.5).clamp(0, 1).float()
        return colours


class Ltx2AudioDecoder(LoadedComponent):
    """The decoder of the audio VAE and the vocoder, see ``contract.AudioDecoder``.

    ``module`` has the ``vae`` and the ``vocoder``.
    """

    def __init__(self, module: Any, geometry: Geometry) -> None:
        super().__init__(module)
        self._geometry = geometry
        self.rate: int = module.vocoder.config.output_sampling_rate

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Decode [channels, time, bins] to float32 [samples, 2] in [-1, 1] on the CPU."""
        from diffusers import LTX2Pipeline

        module: Any = self.module
        own = self._geometry
        if latents.dim() != 3 or (len(latents), latents.shape[2]) != (own.channels, own.bins) or not latents.shape[1]:
            raise errors.BadRequest(
                f"this decoder takes latents [{own.channels}, time, {own.bins}], not {list(latents.shape)}",
                param="latents",
            )
        weight = next(module.vae.decoder.parameters())
        packed_latents = LTX2Pipeline._denormalize_audio_latents(
            LTX2Pipeline._pack_audio_latents(latents[None].to(weight.device)),
            module.vae.latents_mean,
            module.vae.latents_std,
        )
        plain = LTX2Pipeline._unpack_audio_latents(packed_latents, latents.shape[1], own.bins)
        spectra = module.vae.decode(plain.to(weight), return_dict=False)[0]
        wave: Tensor = module.vocoder(spectra)[0]
        return wave.float().clamp(-1, 1).T.contiguous().cpu()


class LTX2:
    """See ``contract.ModelFamily``."""

    name = "ltx2"
    components = ("text_encoder", "vae_encoder", "dit", "vae", "audio_vae")

    def load(
        self,
        component: str,
        checkpoint: Path,
        device: str = "cpu",
        dtype: str = "float32",
        limits: media.MediaDecodeLimits = media.DEFAULT,
    ) -> Any:
        """Load one component alone, of the VAEs their decoders. ``limits`` apply to images of ``vae_encoder``."""
        checkpoint = Path(checkpoint)
        match component:
            case "text_encoder":
                return _text_encoder(checkpoint, device, dtype)
            case "vae_encoder":
                return load_frame_encoder(checkpoint, device, dtype, limits)
            case "dit":
                return _load_denoiser(checkpoint, device, dtype)
            case "vae":
                return _load_video_decoder(checkpoint, device, dtype)
            case "audio_vae":
                return _load_audio_decoder(checkpoint, device, dtype)
        raise no_component(self.name, self.components, component)


def _text_encoder(checkpoint: Path, device: str, dtype: str) -> Ltx2TextEncoder:
    from diffusers.pipelines.ltx2 import LTX2TextConnectors
    from transformers import AutoTokenizer, Gemma3ForConditionalGeneration

    from omnibus_models import diffusers_loading

    _require_class(checkpoint, "text_encoder", "Gemma3ForConditionalGeneration")
    drop = ["model.vision_tower", "model.multi_modal_projector", "lm_head"]
    part = checkpoint / "text_encoder"
    language = loading.load_model(Gemma3ForConditionalGeneration, part, drop=drop, device=device, dtype=dtype)
    connectors = diffusers_loading.load_model(LTX2TextConnectors, checkpoint, "connectors", device=device, dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint / "tokenizer", local_files_only=True)
    return Ltx2TextEncoder(nn.ModuleDict({"language": language, "connectors": connectors}), tokenizer)


def _load_denoiser(checkpoint: Path, device: str, dtype: str) -> Ltx2Denoiser:
    from diffusers import LTX2VideoTransformer3DModel

    from omnibus_models import diffusers_loading

    module = diffusers_loading.load_model(
        LTX2VideoTransformer3DModel, checkpoint, "transformer", device=device, dtype=dtype
    )
    return Ltx2Denoiser(
        module,
        _flow_schedule.load_scheduler(checkpoint),
        _read_geometry(checkpoint),
        partial(_load_palette, checkpoint, device),
    )


def _load_palette(checkpoint: Path, device: str, channels: int) -> Tensor:
    decoder = _load_video_decoder(checkpoint, device, "float32")
    return _latent_preview.fit_surface_colours(channels, lambda latents: decoder.decode_colours(latents)[:, :, 0])


def _load_video_decoder(checkpoint: Path, device: str, dtype: str) -> Ltx2VideoDecoder:
    from diffusers import AutoencoderKLLTX2Video, LTX2Pipeline  # noqa: F401 the second is for requests

    from omnibus_models import diffusers_loading

    module = diffusers_loading.load_model(
        AutoencoderKLLTX2Video, checkpoint, "vae", drop=("encoder",), device=device, dtype=dtype
    )
    if module.config.timestep_conditioning:
        raise errors.Fatal(f"{checkpoint} decodes videos with more noise, which this family does not serve")
    return Ltx2VideoDecoder(module)


def _load_audio_decoder(checkpoint: Path, device: str, dtype: str) -> Ltx2AudioDecoder:
    from diffusers import AutoencoderKLLTX2Audio, LTX2Pipeline  # noqa: F401 the second is for requests
    from diffusers.pipelines.ltx2 import vocoder

    from omnibus_models import diffusers_loading

    kind = getattr(vocoder, _require_class(checkpoint, "vocoder", "LTX2Vocoder", "LTX2VocoderWithBWE"))
    parts = {
        "vae": diffusers_loading.load_model(
            AutoencoderKLLTX2Audio, checkpoint, "audio_vae", drop=("encoder",), device=device, dtype=dtype
        ),
        "vocoder": diffusers_loading.load_model(kind, checkpoint, "vocoder", device=device, dtype=dtype),
    }
    return Ltx2AudioDecoder(nn.ModuleDict(parts), _read_geometry(checkpoint))


def _read_geometry(checkpoint: Path) -> Geometry:
    """Read the sizes from the configurations of both VAEs; their weights are not needed."""
    from diffusers import AutoencoderKLLTX2Audio, AutoencoderKLLTX2Video

    try:
        with torch.device("meta"):
            film, sound = (
                kind.from_config(kind.load_config(checkpoint, subfolder=part, local_files_only=True))
                for kind, part in ((AutoencoderKLLTX2Video, "vae"), (AutoencoderKLLTX2Audio, "audio_vae"))
            )
    except (OSError, ValueError) as error:
        raise errors.Fatal(f"{checkpoint} lacks the configuration of one of its VAEs: {error}") from error
    config = sound.config
    return Geometry(
        unit=film.spatial_compression_ratio,
        frames=film.temporal_compression_ratio,
        bins=config.mel_bins // sound.mel_compression_ratio,
        channels=config.latent_channels,
        rate=config.sample_rate / config.mel_hop_length / float(sound.temporal_compression_ratio),
    )


def _require_class(checkpoint: Path, part: str, *known: str) -> str:
    """Return the class of ``part``. Raises ``Fatal`` unless it is among the ``known``."""
    try:
        _, class_name = json.loads((checkpoint / "model_index.json").read_text())[part]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise errors.Fatal(f"{checkpoint}/model_index.json does not specify its {part}") from error
    if class_name not in known:
        raise errors.Fatal(f"the {part} of {checkpoint} is a {class_name}; this family serves {' and '.join(known)}")
    return str(class_name)


FAMILY = LTX2()
