"""Trials of modular pipelines: whether their components give the images of the whole pipeline.

Two requests run at the same time, step by step, so that state on a model would mix them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from omnibus_models.contract import ImageSpec
from omnibus_models.families import _modular_blocks
from omnibus_models.families._modular_components import (
    OUTPUTS,
    ModularDecoder,
    ModularDenoiser,
    ModularTextEncoder,
    to_bytes,
)

#: Prompts and seeds of the requests.
REQUESTS = (("a red cat", 1), ("two green hills", 2))
#: Sizes to try, in pixels and frames: the first that the whole pipeline accepts.
SIZES = ((32, 64, 9), (64, 96, 9), (128, 128, 17), (256, 256, 17))
#: Steps to try with each size. Some pipelines accept only their default, for which 0 stands.
STEPS = (3, 0)


def find_fault(cls: Any, checkpoint: Path) -> str:
    """Return why the components of ``checkpoint`` do not give the bits of the whole pipeline ``cls``, or ""."""
    expected, size = _run_whole(cls, checkpoint)
    given = _run_apart(cls, checkpoint, size)
    for one, other in zip(expected, given, strict=True):
        if one.shape != other.shape or not np.array_equal(one, other):
            return "the components give other pixels than the whole pipeline"
    # Images that do not depend on the request would be equal as well.
    return "the pixels do not depend on the request" if np.array_equal(*given) else ""


def _run_whole(cls: Any, checkpoint: Path) -> tuple[list[np.ndarray], tuple[int, int, int, int]]:
    """Return the pixels of each request, and the first size and steps that the pipeline accepts."""
    pipeline = _modular_blocks.open_pipeline(cls, checkpoint)
    part = _modular_blocks.ModularPart(pipeline, checkpoint, list(pipeline.blocks.sub_blocks), "cpu", "float32")
    steps_input = part.inputs.get("num_inference_steps")
    usual = int(getattr(steps_input, "default", None) or STEPS[0])
    first: Exception | None = None
    for size in ((*size, steps or usual) for steps in STEPS for size in SIZES):
        try:
            return [_call_pipeline(part, prompt, seed, size) for prompt, seed in REQUESTS], size
        except Exception as error:  # noqa: BLE001 whatever a library raises
            first = first or error
    raise first or ValueError("no size")


def _call_pipeline(part: Any, prompt: str, seed: int, size: tuple[int, int, int, int]) -> np.ndarray:
    width, height, frames, steps = size
    values = {
        "prompt": prompt,
        "negative_prompt": "dark",
        "width": width,
        "height": height,
        "num_frames": frames,
        "num_inference_steps": steps,
        "generator": torch.Generator().manual_seed(seed),
        "output_type": "np",
        "frame_rate": 24.0,
        "fps": 24.0,
    }
    state = part.copy_pipeline()(**{name: value for name, value in values.items() if name in part.inputs})
    return to_bytes(next(value for name in OUTPUTS if (value := state.get(name)) is not None)[0])


def _run_apart(cls: Any, checkpoint: Path, size: tuple[int, int, int, int]) -> list[np.ndarray]:
    def load(kind: Any, component: str) -> Any:
        pipeline = _modular_blocks.open_pipeline(cls, checkpoint)
        names = _modular_blocks.split_blocks(pipeline.blocks)[component]
        return kind(_modular_blocks.ModularPart(pipeline, checkpoint, names, "cpu", "float32"))

    text, denoiser = load(ModularTextEncoder, "text_encoder"), load(ModularDenoiser, "dit")
    decoder = load(ModularDecoder, "vae")
    negative = "negative_prompt" in text._part.inputs
    width, height, frames, steps = size
    runs = []
    for prompt, seed in REQUESTS:
        prepared = text.prepare_negative(prompt, "dark") if negative else text.prepare(prompt)
        [encoded] = text.encode([prepared])
        spec = ImageSpec(width=width, height=height, steps=steps, seed=seed, frames=frames)
        runs.append(denoiser.open(spec, [encoded.embeds]))
    while any(run.done < run.steps for run in runs):
        denoiser.step([run for run in runs if run.done < run.steps])
    return [decoder.decode(denoiser.latents(run)).numpy() for run in runs]
