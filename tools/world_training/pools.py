"""Images and audio for training, generated once and used many times."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from omnibus_models.world import dialogues, scenes, tone_synth
from omnibus_models.world.scenes import ShapeScene
from tools.world_training import omni

_NOISE = 8.0  # most deviation of noise over a whole image, of 255


@dataclass(frozen=True)
class Pictures:
    """Images uint8 [n, 64, 64, 3] and their scenes."""

    pixels: Tensor
    scenes: Sequence[ShapeScene]


@dataclass(frozen=True)
class Sounds:
    """Log-mel features [bands, frames] of audio clips, and the words for each."""

    features: Sequence[Tensor]
    words: Sequence[str]


def pictures(of: Sequence[ShapeScene], count: int, seed: int, wild: float = scenes.WILD) -> Pictures:
    """``count`` images, all scenes equally often; see ``scenes.drawn``."""
    random = np.random.default_rng(seed)
    samples = [of[index % len(of)] for index in range(count)]
    return Pictures(torch.from_numpy(np.stack([scenes.draw_scene(scene, random, wild) for scene in samples])), samples)


def tones(hearing: Any, count: int, seed: int) -> Sounds:
    """``count`` audio clips of tones through the extractor of the library."""
    random = np.random.default_rng(seed)
    tone_lists = [dialogues.sample_tones(random) for _ in range(count)]
    features = [listened(hearing, tone_synth.synthesize_tones(list(tones), random)) for tones in tone_lists]
    return Sounds(features, [" ".join(tones) for tones in tone_lists])


def listened(hearing: Any, samples: np.ndarray) -> Tensor:
    """Log-mel features [bands, frames] as the encoder prepares them."""
    inputs = hearing.prepare(memoryview(tone_synth.encode_wav(samples, tone_synth.INPUT_RATE_HERTZ)), "audio")
    features: Tensor = inputs.features["features"]
    return features.clone()  # a view would keep all of the silence after it in memory


def patches(pixels: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Cut images [n, 64, 64, 3] into patches [n * 64, values].

    The order is that of the library's processor. With a ``generator``, noise is added.
    """
    colours = pixels.float()
    if generator is not None:
        strength = _NOISE * torch.rand(len(colours), 1, 1, 1, generator=generator)
        colours = (colours + strength * torch.randn(colours.shape, generator=generator)).clamp(0, 255)
    colours = (colours / 255 - torch.tensor(_MEAN)) / torch.tensor(_STD)
    side = scenes.SIDE // (2 * omni.PATCH)
    cut = colours.reshape(-1, side, 2, omni.PATCH, side, 2, omni.PATCH, 3).permute(0, 1, 4, 2, 5, 7, 3, 6)
    return cut.unsqueeze(6).expand(*cut.shape[:6], 2, *cut.shape[6:]).reshape(-1, 2 * 3 * omni.PATCH**2)


#: Of CLIP, which the library's processor has.
_MEAN = (0.48145466, 0.4578275, 0.40821073)
_STD = (0.26862954, 0.26130258, 0.27577711)
