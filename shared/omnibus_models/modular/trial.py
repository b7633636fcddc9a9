"""Admission of pipelines in blocks: whether the components of a small copy give the images of the whole pipeline.

Two requests run at the same time, step by step, so that state on a model would mix them.
"""

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import diffusers
import msgspec
import numpy as np
import torch
import transformers
from PIL import Image

from omnibus import errors
from omnibus.checkpoints.report import TrialComparison
from omnibus_models.contract import Encoded, ImageSpec
from omnibus_models.modular import blocks as modular_blocks
from omnibus_models.modular.components import (
    OUTPUTS,
    ModularDecoder,
    ModularDenoiser,
    ModularImageEncoder,
    ModularTextEncoder,
    output_type,
    to_bytes,
)
from omnibus_models.tiny import _pipelines
from omnibus_models.verdicts import find_stored, record_comparison, verdict_path

_FORMAT = 2  # of stored results

#: Prompts and seeds of the requests.
REQUESTS = (("a red cat", 1), ("two green hills", 2))
_NEGATIVE = "dark"
#: Sizes to try, in pixels and frames: the first that the whole pipeline accepts.
SIZES = ((32, 64, 9), (64, 96, 9), (128, 128, 17), (256, 256, 17))
#: Steps to try with each size. Some pipelines accept only their default, for which 0 stands.
STEPS = (4, 0)


class PipelineVerdict(msgspec.Struct, frozen=True):
    """Verdict on a class, for requests with a ``text`` alone, with an ``image``, and with a ``mask`` of one.

    Each says why the components do not give the bits of the whole, and is "" if they do.
    """

    text: str
    image: str
    mask: str


class Drawn(NamedTuple):
    """The image of the requests, and its mask."""

    image: Image.Image
    mask: Image.Image | None = None


def find_fault(cls: Any, checkpoint: Path, drawn: Drawn | None = None) -> str:
    """Return why the components of ``checkpoint`` do not give the bits of the whole pipeline.

    It is empty if they do. ``cls`` is the class of the pipeline.
    """
    inputs = "text" if drawn is None else "an image and a mask" if drawn.mask else "an image"
    subject = f"{inputs}: components apart"
    try:
        expected, size = _run_whole(cls, checkpoint, drawn)
        given = _run_apart(cls, checkpoint, size, drawn)
        unmasked = _run_apart(cls, checkpoint, size, drawn._replace(mask=None)) if drawn and drawn.mask else None
    except Exception as error:  # noqa: BLE001 whatever a library raises
        [line, *_] = str(error).splitlines() or [""]
        return record_comparison(TrialComparison(subject, fault=f"{type(error).__name__}: {line[:200]}"))
    pairs = list(zip(expected, given, strict=True))
    same_sizes = all(one.shape == other.shape for one, other in pairs)
    largest = max(int(np.abs(one.astype(int) - other).max()) for one, other in pairs) if same_sizes else None
    fault = ""
    if largest != 0:
        fault = "the components give other pixels than the whole pipeline"
    elif unmasked is not None and np.array_equal(given[0], unmasked[0]):
        fault = "the pixels do not depend on the mask"
    elif np.array_equal(given[0], given[1]):  # they would be equal as well
        fault = "the pixels do not depend on the request"
    return record_comparison(TrialComparison(subject, largest, 0, fault))


def _run_whole(cls: Any, checkpoint: Path, drawn: Drawn | None) -> tuple[list[np.ndarray], tuple[int, int, int, int]]:
    """Return the pixels of each request, and the first size and steps that the pipeline accepts."""
    pipeline = modular_blocks.open_pipeline(cls, checkpoint)
    part = modular_blocks.ModularPart(pipeline, checkpoint, list(pipeline.blocks.sub_blocks), "cpu", "float32")
    if missing := _image_inputs(drawn).keys() - part.inputs.keys():
        raise ValueError(f"it takes no {', '.join(sorted(missing))}")
    steps_input = part.inputs.get("num_inference_steps")
    usual = int(getattr(steps_input, "default", None) or STEPS[0])
    first: Exception | None = None
    for size in ((*size, steps or usual) for steps in STEPS for size in SIZES):
        try:
            return [_call_pipeline(part, prompt, seed, size, drawn) for prompt, seed in REQUESTS], size
        except Exception as error:  # noqa: BLE001 whatever a library raises
            first = first or error
    raise first or ValueError("no size")


def _image_inputs(drawn: Drawn | None) -> dict[str, Image.Image]:
    if drawn is None:
        return {}
    return {"image": drawn.image} if drawn.mask is None else {"image": drawn.image, "mask_image": drawn.mask}


def _call_pipeline(
    part: Any, prompt: str, seed: int, size: tuple[int, int, int, int], drawn: Drawn | None
) -> np.ndarray:
    width, height, frames, steps = size
    values = {
        "prompt": prompt,
        "negative_prompt": _NEGATIVE,
        "width": width,
        "height": height,
        "num_frames": frames,
        "num_inference_steps": steps,
        "generator": torch.Generator().manual_seed(seed),
        "output_type": output_type(part.pipeline),
        "frame_rate": 24.0,
        "fps": 24.0,
        **_image_inputs(drawn),
    }
    state = part.copy_pipeline()(**{name: value for name, value in values.items() if name in part.inputs})
    return to_bytes(next(value for name in OUTPUTS if (value := state.get(name)) is not None)[0])


def _run_apart(cls: Any, checkpoint: Path, size: tuple[int, int, int, int], drawn: Drawn | None) -> list[np.ndarray]:
    def load_part(kind: Any, component: str) -> Any:
        pipeline = modular_blocks.open_pipeline(cls, checkpoint)
        names = modular_blocks.split_blocks(pipeline.blocks)[component]
        return kind(modular_blocks.ModularPart(pipeline, checkpoint, names, "cpu", "float32"))

    text, denoiser = load_part(ModularTextEncoder, "text_encoder"), load_part(ModularDenoiser, "dit")
    encoder, decoder = load_part(ModularImageEncoder, "vae_encoder"), load_part(ModularDecoder, "vae")
    negative = _NEGATIVE if "negative_prompt" in text.inputs else ""
    width, height, frames, steps = size
    runs = []
    for prompt, seed in REQUESTS:
        spec = ImageSpec(width=width, height=height, steps=steps, seed=seed, frames=frames)
        source = None if drawn is None else encoder.encode(encoder.pack_image(drawn.image, spec, drawn.mask))
        items = [] if source is None else [Encoded(source, {})]
        [encoded] = text.encode([text.prepare_negative(prompt, negative, items)])
        runs.append(denoiser.open(spec, [encoded.embeds], source))
    while any(run.done < run.steps for run in runs):
        denoiser.step([run for run in runs if run.done < run.steps])
    return [decoder.decode(denoiser.latents(run)).numpy() for run in runs]


def admit_pipeline(cls: Any) -> PipelineVerdict:
    """Raise ``Fatal`` if the components of ``cls`` never give the bits of the whole pipeline.

    A small copy of it decides.
    """
    verdict = find_verdict(cls)
    if verdict.text and verdict.image:
        raise errors.Fatal(f"{cls.__name__} of diffusers {diffusers.__version__} is not served: {verdict.text}")
    return verdict


def find_verdict(cls: Any) -> PipelineVerdict:
    """Return how a small copy of ``cls`` runs in components. A trial's result is stored."""
    key = [_FORMAT, diffusers.__version__, transformers.__version__, torch.__version__, cls.__name__]
    return find_stored(verdict_path(key, f"{cls.__name__}-"), PipelineVerdict, lambda: try_class(cls))


def try_class(cls: Any) -> PipelineVerdict:
    """Try a small copy of ``cls``."""
    if cls.__name__ not in _pipelines.COPIES:
        return PipelineVerdict(*["there is no small copy of it to try"] * 3)
    # In the proportions of the first size, which some pipelines require.
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (160, 80, 3), np.uint8))
    mask = Image.fromarray(np.repeat(np.array([0, 255], np.uint8), 80)[:, None].repeat(80, axis=1))
    verbosity = diffusers.logging.get_verbosity()
    diffusers.logging.set_verbosity(diffusers.logging.FATAL)  # sizes that a pipeline rejects are no news
    try:
        with tempfile.TemporaryDirectory() as directory:
            checkpoint = Path(directory)
            _pipelines.write_copy(cls, checkpoint)
            requests = (None, Drawn(image), Drawn(image, mask))
            return PipelineVerdict(*(find_fault(cls, checkpoint, drawn) for drawn in requests))
    finally:
        diffusers.logging.set_verbosity(verbosity)
