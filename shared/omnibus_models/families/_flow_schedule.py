"""Schedules of denoisers whose noise increases with the size of the output."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from omnibus import errors


def load_scheduler(checkpoint: Path) -> Any:
    """Load the scheduler of ``checkpoint``. Raises ``Fatal`` if it cannot be read, or its steps draw noise."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    try:
        scheduler = FlowMatchEulerDiscreteScheduler.from_pretrained(checkpoint, subfolder="scheduler")
    except (OSError, ValueError) as error:
        raise errors.Fatal(f"{checkpoint} lacks the configuration of its scheduler: {error}") from error
    if scheduler.config.stochastic_sampling:
        raise errors.Fatal(f"{checkpoint} samples with noise in every step, which is not served")
    return scheduler


def laid_out(scheduler: Any, steps: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Return sigmas [steps + 1] and timesteps [steps]; with more ``tokens``, noise decreases later.

    Raises ``BadRequest`` for an unsupported number of steps.
    """
    from diffusers.pipelines.qwenimage.pipeline_qwenimage import calculate_shift

    config = scheduler.config
    # Stretched to its end, a schedule of one step is NaN.
    least, most = 2 if config.shift_terminal else 1, config.num_train_timesteps
    if not least <= steps <= most:
        raise errors.BadRequest(f"steps must be {least} to {most}, not {steps}", param="steps")
    shift = calculate_shift(
        tokens, config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift
    )
    own = copy.copy(scheduler)
    own.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=shift)
    return own.sigmas, own.timesteps
