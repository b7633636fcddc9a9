"""The decoder of the VAE of GLM-Image."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from omnibus import errors
from omnibus_models.contract import LoadedComponent
from omnibus_models.families import _latent_preview


class GlmImageDecoder(LoadedComponent):
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
        """Decode [channels, 1, height, width] to uint8 [H, W, 3] on the CPU."""
        if latents.dim() != 4 or latents.shape[:2] != (self._channels, 1):
            raise errors.BadRequest(
                f"this decoder takes latents [{self._channels}, 1, height, width], not {list(latents.shape)}",
                param="latents",
            )
        return _latent_preview.to_bytes(self.decode_colours(latents.transpose(0, 1))[0].permute(1, 2, 0).cpu())

    @torch.no_grad()
    def decode_colours(self, latents: Tensor) -> Tensor:
        """Decode [B, channels, height, width] to colours, float32 [B, 3, H, W] in [0, 1]."""
        module: Any = self.module
        out = module.decode(latents.to(self._weight) * self._scale + self._mean, return_dict=False)[0]
        colours: Tensor = (out * 0.5 + 0.5).clamp(0, 1).float()
        return colours


def load_decoder(checkpoint: Path, device: str, dtype: str) -> GlmImageDecoder:
    """Load the decoder of ``checkpoint``."""
    from diffusers import AutoencoderKL

    from omnibus_models import diffusers_loading

    drop = ("encoder", "quant_conv")
    return GlmImageDecoder(
        diffusers_loading.load_model(AutoencoderKL, checkpoint, "vae", drop=drop, device=device, dtype=dtype)
    )
