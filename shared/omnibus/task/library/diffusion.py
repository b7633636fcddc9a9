"""Diffusion: text encoder, prior, denoiser (DiT), and decoders (VAEs) to pictures, video and sound."""

from typing import ClassVar

import numpy as np

from omnibus.task.base import UnitTask
from omnibus.task.item_codec import Part
from omnibus.task.library.speech import Audio
from omnibus.task.types import OnDemand, Stream, TaskInput, TaskOutput, Tensor


class TextEncodeInput(TaskInput):
    prompt: str
    #: What the picture is guided away from; None where nothing guides it so.
    negative_prompt: str | None = None
    #: Embeddings of pictures that the prompt refers to, for editing.
    items: list[Tensor] = []


class TextEncodeOutput(TaskOutput):
    #: [1 or 2, tokens, width] float32: the prompt and, where there is one, the negative prompt.
    embeds: Tensor
    #: [1 or 2, tokens] bool: which of them count.
    mask: Tensor
    #: Tokens of the prompt.
    tokens: OnDemand[int]


class TextEncode(UnitTask[TextEncodeInput, TextEncodeOutput]):
    """A prompt to what guides a denoiser."""

    kind: ClassVar[str] = "text-encode"
    service: ClassVar[str] = "encoder"


class Progress(Part):
    """One step is done."""

    step: int = 0
    steps: int = 0


class Preview(Progress):
    """Small preview of the unfinished picture: ``array`` is [height, width, 3] uint8."""

    array: np.ndarray | None = None


class PriorInput(TaskInput):
    prompt: str
    #: Pixels, 0: the model's usual ones.
    width: int
    height: int
    #: Of the lots that are cast. None is the invocation's own, and another one for each equal call.
    seed: int | None = None


class PriorOutput(TaskOutput):
    #: [1, 1, rows, columns] float32.
    tokens: OnDemand[Tensor]
    progress: OnDemand[Stream[Progress]]


class Prior(UnitTask[PriorInput, PriorOutput]):
    """A language model that draws a picture roughly, in tokens, for a denoiser to follow."""

    kind: ClassVar[str] = "prior"


class DenoiseInput(TaskInput):
    embeds: Tensor
    mask: Tensor
    #: Pixels, 0: as ``image`` has them, and without one the model's usual ones; ``frames`` is 1 for a picture.
    width: int
    height: int
    frames: int = 1
    fps: float | None = None
    steps: int
    #: How far from the negative prompt; None is the model's usual one.
    guidance: float | None = None
    #: Of the noise. None is the invocation's own, and another one for each equal call.
    seed: int | None = None
    #: Steps from one preview to the next.
    every: int = 1
    #: Latents of a picture, [channels, 1, height, width], for editing and for video from a picture.
    image: Tensor | None = None
    #: Tokens of a prior, for models that have one.
    prior: Tensor | None = None


class DenoiseOutput(TaskOutput):
    #: [channels, frames, height, width] latents of picture or video.
    latents: OnDemand[Tensor]
    #: [channels, time, bins] latents of the sound of a video, for models that make both.
    sound: OnDemand[Tensor]
    progress: OnDemand[Stream[Progress]]
    preview: OnDemand[Stream[Preview]]


class Denoise(UnitTask[DenoiseInput, DenoiseOutput]):
    """The diffusion transformer: noise to latents, step by step. Equal calls get different noise unless told a seed."""

    kind: ClassVar[str] = "denoise"


class DecodeInputs(TaskInput):
    latents: Tensor


class DecodeImageOutput(TaskOutput):
    #: [height, width, 3] uint8.
    image: Tensor


class DecodeImage(UnitTask[DecodeInputs, DecodeImageOutput]):
    """A VAE's decoder: latents to a picture."""

    kind: ClassVar[str] = "decode-image"


class DecodeVideoOutput(TaskOutput):
    #: Frames in order, [frames, height, width, 3] uint8 at a time.
    frames: Stream[Tensor]


class DecodeVideo(UnitTask[DecodeInputs, DecodeVideoOutput]):
    """A video VAE's decoder: latents to frames, as they come."""

    kind: ClassVar[str] = "decode-video"


class DecodeAudioOutput(TaskOutput):
    audio: Stream[Audio]


class DecodeAudio(UnitTask[DecodeInputs, DecodeAudioOutput]):
    """An audio VAE's decoder with its vocoder: latents to samples [n, channels]."""

    kind: ClassVar[str] = "decode-audio"
