"""The encoder of LTX-2's VAE: an image to the first latent frame.

It follows ``LTX2ImageToVideoPipeline``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from omnibus import errors
from omnibus_models import media
from omnibus_models.contract import NO_CHANGE, ImageChange, ImageSpec, LoadedComponent

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
