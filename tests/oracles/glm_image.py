"""Images of the pipeline of GLM-Image.

As in ``tests.models_oracle``, all code is the library's own.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tests import models_oracle  # noqa: F401 - installs the library's requirements


class Painted(NamedTuple):
    """Tokens and pixels of an image.

    ``prior`` [positions]: tokens, each four times. ``pixels`` [height, width, 3] in [0, 255], not rounded.
    """

    prior: torch.Tensor
    pixels: np.ndarray


@functools.cache
def paint_image(checkpoint: Path, prompt: str, **wish: Any) -> Painted:
    """Image of a ``wish``, with the field names of ``DrawInput``."""
    pipe = load_pipeline(checkpoint)
    prior_tokens: list[torch.Tensor] = []
    hook = pipe.transformer.prior_token_embedding.register_forward_pre_hook(
        lambda _, args: prior_tokens.append(args[0])
    )
    options = {} if wish.get("guidance") is None else {"guidance_scale": wish["guidance"]}
    try:
        with torch.random.fork_rng(devices=[]):
            output = pipe(
                prompt,
                width=wish["width"],
                height=wish["height"],
                num_inference_steps=wish["steps"],
                generator=torch.Generator().manual_seed(wish["seed"]),
                output_type="np",
                **options,
            )
    finally:
        hook.remove()
    return Painted(prior_tokens[0][0], output.images[0] * 255)


@functools.cache
def load_pipeline(checkpoint: Path) -> Any:
    from diffusers import GlmImagePipeline

    pipe = GlmImagePipeline.from_pretrained(checkpoint)
    pipe.set_progress_bar_config(disable=True)
    return pipe
