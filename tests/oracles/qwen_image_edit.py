"""Output of the library's own pipeline of Qwen-Image-Edit."""

import functools
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from PIL import Image

from omnibus_models import torchvision_cpu

torchvision_cpu.install_operators()


def edit_image(
    checkpoint: Path,
    data: bytes,
    prompt: str,
    *,
    steps: int,
    seed: int,
    width: int = 0,
    height: int = 0,
    guidance: float = 4.0,
    negative: str | None = "",
    output: str = "np",
) -> Any:
    """The edited image, or its latents [tokens, channels].

    The image is float32 [height, width, 3] in [0, 255] before rounding.
    """
    with _scale_images(checkpoint):
        [pixels] = load_pipeline(checkpoint)(
            image=_open_picture(data),
            prompt=prompt,
            negative_prompt=negative,
            width=width or None,
            height=height or None,
            num_inference_steps=steps,
            true_cfg_scale=guidance,
            generator=torch.Generator().manual_seed(seed),
            output_type=output,
        ).images
    return pixels * 255 if output == "np" else pixels


def make_guides(checkpoint: Path, data: bytes, prompt: str) -> torch.Tensor:
    """Conditioning of the transformer: [tokens, width]."""
    pipe = load_pipeline(checkpoint)
    with _scale_images(checkpoint) as module, torch.no_grad():
        picture = _open_picture(data)
        width, height, _ = module.calculate_dimensions(1024 * 1024, picture.width / picture.height)
        embeds, mask = pipe.encode_prompt(prompt, image=pipe.image_processor.resize(picture, height, width))
    assert mask is None
    embedding: torch.Tensor = embeds[0]
    return embedding


@functools.cache
def load_pipeline(checkpoint: Path) -> Any:
    """The pipeline, with image tokens marked for its text encoder.

    See huggingface/diffusers#14194.
    """
    pipe = load_bare(checkpoint)
    encoder, plain = pipe.text_encoder, pipe.text_encoder.forward

    @functools.wraps(plain)
    def forward_with_kinds(*args: Any, **kwargs: Any) -> Any:
        kinds = (kwargs["input_ids"] == encoder.config.image_token_id).int()
        return plain(*args, **kwargs, mm_token_type_ids=kinds)

    encoder.forward = forward_with_kinds
    return pipe


def load_bare(checkpoint: Path) -> Any:
    """The unmodified pipeline."""
    from diffusers import QwenImageEditPipeline

    pipe = QwenImageEditPipeline.from_pretrained(checkpoint)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@contextmanager
def _scale_images(checkpoint: Path) -> Iterator[Any]:
    """Scale images to the tiny language model's input size.

    The pipeline's module has a megapixel as a constant.
    """
    import diffusers.pipelines.qwenimage.pipeline_qwenimage_edit as module

    plain, most = module.calculate_dimensions, load_pipeline(checkpoint).processor.image_processor.size["longest_edge"]
    with mock.patch.object(module, "calculate_dimensions", lambda area, ratio: plain(min(area, most), ratio)):
        yield module


def _open_picture(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")
