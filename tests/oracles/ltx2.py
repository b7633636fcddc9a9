"""Output of the library's own pipeline of LTX-2."""

import functools
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from omnibus_models import torchvision_cpu

torchvision_cpu.install_operators()

#: Guidance of all kinds switched off.
PLAIN = {
    "guidance_scale": 1.0,
    "audio_guidance_scale": 1.0,
    "stg_scale": 0.0,
    "audio_stg_scale": 0.0,
    "modality_scale": 1.0,
    "audio_modality_scale": 1.0,
}


class Film(NamedTuple):
    """Frames and audio samples, or latents of both.

    Frames are float32 [frames, height, width, 3] in [0, 255] before rounding, and samples [n, 2]. Latents are those of
    the VAEs: [channels, frames, height, width] and [channels, time, bins].
    """

    frames: Any
    sound: Any


def generate_video(
    checkpoint: Path,
    prompt: str,
    *,
    width: int,
    height: int,
    frames: int,
    steps: int,
    seed: int,
    fps: float = 24.0,
    negative: str = "",
    output: str = "np",
    first: bytes = b"",
    **guidance: Any,
) -> Film:
    """Generate a video.

    ``guidance`` are the pipeline's own settings; ``first`` is the file of its first image.
    """
    inputs = {"image": Image.open(io.BytesIO(first)).convert("RGB")} if first else {}
    result = (image_pipeline if first else load_pipeline)(checkpoint)(
        prompt=prompt,
        **inputs,
        negative_prompt=negative,
        width=width,
        height=height,
        num_frames=frames,
        frame_rate=fps,
        num_inference_steps=steps,
        # The usual block is there in a large model alone.
        spatio_temporal_guidance_blocks=[1],
        generator=torch.Generator().manual_seed(seed),
        output_type=output,
        **guidance,
    )
    if output == "latent":
        return Film(result.frames[0], result.audio[0])
    return Film(result.frames[0] * 255, np.asarray(result.audio[0].T))


def make_guides(checkpoint: Path, prompt: str) -> torch.Tensor:
    """Conditioning of video and audio, side by side: [tokens, width]."""
    pipe = load_pipeline(checkpoint)
    with torch.no_grad():
        embeds, mask, *_ = pipe.encode_prompt(prompt, do_classifier_free_guidance=False)
        film, sound, final_mask = pipe.connectors(embeds, mask, padding_side="left")
    return torch.cat([film[0], sound[0]], -1)[final_mask[0].bool()]


@functools.cache
def load_pipeline(checkpoint: Path) -> Any:
    from diffusers import LTX2Pipeline

    pipe = LTX2Pipeline.from_pretrained(checkpoint)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@functools.cache
def image_pipeline(checkpoint: Path) -> Any:
    """The library's image-to-video pipeline, with the same components."""
    from diffusers import LTX2ImageToVideoPipeline

    pipe = LTX2ImageToVideoPipeline(**load_pipeline(checkpoint).components)
    pipe.set_progress_bar_config(disable=True)
    return pipe
