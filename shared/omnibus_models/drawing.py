"""What denoisers have in common: the schedule of their steps, and the colours that their latents promise."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from omnibus import errors

#: Latents on a side of the plain surfaces that tell a decoder's colours.
_SIDE = 4


def scheduler(checkpoint: Path) -> Any:
    """The scheduler of ``checkpoint``. Raises ``Fatal`` for one that cannot be read, or whose steps draw noise."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    try:
        found = FlowMatchEulerDiscreteScheduler.from_pretrained(checkpoint, subfolder="scheduler")
    except (OSError, ValueError) as error:
        raise errors.Fatal(f"{checkpoint} lacks the configuration of its scheduler: {error}") from error
    if found.config.stochastic_sampling:
        raise errors.Fatal(f"{checkpoint} samples with noise in every step, which is not served")
    return found


def schedule(scheduler: Any, steps: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Sigmas [steps + 1] and timesteps [steps]; what has more ``tokens`` stays longer in the noise.

    Raises ``BadRequest`` for a number of steps that there is no schedule of.
    """
    from diffusers.pipelines.qwenimage.pipeline_qwenimage import calculate_shift

    config = scheduler.config
    # Stretched to its end, a schedule of one step is no number.
    least, most = 2 if config.shift_terminal else 1, config.num_train_timesteps
    if not least <= steps <= most:
        raise errors.BadRequest(f"steps must be {least} to {most}, not {steps}", param="steps")
    shift = calculate_shift(
        tokens, config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift
    )
    own = copy.copy(scheduler)
    own.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=shift)
    return own.sigmas, own.timesteps


def palette(channels: int, paint: Callable[[Tensor], Tensor]) -> Tensor:
    """[channels + 1, 3]: the colour that each latent adds to a plain surface, and what the latter has by itself.

    ``paint`` makes colours [B, 3, height, width] of latents [B, channels, 1, height, width].
    """
    count = max(64, 2 * channels)
    drawn = torch.randn(count, channels, generator=torch.Generator().manual_seed(0))
    surfaces = drawn[:, :, None, None, None].expand(-1, -1, 1, _SIDE, _SIDE)
    colours = paint(surfaces).mean((2, 3)).cpu()
    found: Tensor = torch.linalg.lstsq(torch.cat([drawn, torch.ones(count, 1)], 1), colours).solution
    return found


def shown(plane: Tensor, palette: Tensor) -> Tensor:
    """Latents [channels, height, width] as a small picture, uint8 [height, width, 3]."""
    return to_bytes(plane.float().cpu().permute(1, 2, 0) @ palette[:-1] + palette[-1])


def to_bytes(colours: Tensor) -> Tensor:
    """Colours in [0, 1] as uint8."""
    return (colours.clamp(0, 1) * 255).round().to(torch.uint8)
