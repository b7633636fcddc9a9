"""Train an autoencoder that turns images into latents and back."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from omnibus_models.world import scenes
from tools.world_training import loop, pools

STEPS, BATCH, RATE = 2500, 32, 3e-3
_CROP = 32  # pixels on a side: so small that steps are quick, and nothing looks farther
_PICTURES, _WILD = 6000, 1.0
_NOISE = 0.1  # of the deviation of latents: so much a painter may be off
_SMALL = 1e-3  # how little it matters how large latents are


@contextlib.contextmanager
def flat() -> Iterator[None]:
    """Convolutions over time, reduced to one frame.

    Only the last weights count for one frame; the others see padding.
    """
    from diffusers.models.autoencoders.autoencoder_kl_qwenimage import QwenImageCausalConv3d

    usual = QwenImageCausalConv3d.forward

    def forward(self: Any, x: Tensor, cache_x: Tensor | None = None) -> Tensor:
        if x.shape[2] != 1 or cache_x is not None:
            return usual(self, x, cache_x)
        across, down = self._padding[0], self._padding[2]
        frame = nn.functional.conv2d(x[:, :, 0], self.weight[:, :, -1], self.bias, self.stride[1:], (down, across))
        return frame[:, :, None]

    QwenImageCausalConv3d.forward = forward
    try:
        yield
    finally:
        QwenImageCausalConv3d.forward = usual


def encoded(vae: Any, pixels: Tensor) -> Tensor:
    """Means of the latents [B, channels, H / 8, W / 8] of images.

    Images are uint8 [B, H, W, 3].
    """
    colours = pixels.permute(0, 3, 1, 2).float()[:, :, None] / 127.5 - 1
    moments = vae.quant_conv(vae.encoder(colours))
    means: Tensor = moments[:, : vae.config.z_dim, 0]
    return means


def decoded(vae: Any, latents: Tensor) -> Tensor:
    """Colours in about [-1, 1], [B, 3, H, W]."""
    colours: Tensor = vae.decoder(vae.post_quant_conv(latents[:, :, None]))[:, :, 0]
    return colours


def learn(vae: Any, seed: int, steps: int = STEPS) -> None:
    """Train ``vae``."""
    _begin(vae, seed)
    pool = pools.pictures(scenes.training_scenes(), _PICTURES, seed, _WILD)
    generator = torch.Generator().manual_seed(seed)

    def loss(step: int) -> Tensor:
        batch = pool.pixels[torch.randint(len(pool.pixels), (BATCH,), generator=generator)]
        x, y = (int(place) for place in torch.randint(scenes.SIDE - _CROP + 1, (2,), generator=generator))
        batch = batch[:, y : y + _CROP, x : x + _CROP]
        latents = encoded(vae, batch)
        noise = torch.randn(latents.shape, generator=generator) * latents.detach().std() * _NOISE
        target = batch.permute(0, 3, 1, 2).float() / 127.5 - 1
        return nn.functional.mse_loss(decoded(vae, latents + noise), target) + _SMALL * latents.square().mean()

    with flat():
        learnt = [parameter for name, parameter in vae.named_parameters() if "attentions" not in name]
        loop.train("vae", learnt, loss, steps, RATE)


def measure(vae: Any, seed: int) -> None:
    """Store mean and deviation of the latents in the config of ``vae``.

    A painter normalizes its latents with them.
    """
    pool = pools.pictures(scenes.training_scenes(), 1000, seed, _WILD)
    with flat(), torch.no_grad():
        latents = encoded(vae, pool.pixels).transpose(0, 1).flatten(1)
    vae.register_to_config(latents_mean=latents.mean(1).tolist(), latents_std=latents.std(1).tolist())


def _begin(vae: Any, seed: int) -> None:
    loop.spread(vae, seed)
    with torch.no_grad():
        for name, parameter in vae.named_parameters():
            # Weights that see only padding contribute nothing.
            if parameter.dim() == 5 and parameter.shape[2] > 1:
                parameter *= parameter.shape[2] ** 0.5
                parameter[:, :, :-1] = 0
            # Nor does attention, or it would learn the size of the crops.
            if "time_conv" in name or "attentions" in name:
                parameter.zero_()
