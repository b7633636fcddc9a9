"""Diffusion: text encoder, prior, denoiser (DiT), and decoders (VAEs) to image, video and audio."""

from typing import ClassVar

import numpy as np

from omnibus.task.base import UnitTask
from omnibus.task.library.speech import Audio
from omnibus.task.result import Part
from omnibus.task.types import OnDemand, Stream, TaskInput, TaskOutput, Tensor, Tensors, Value


class TextEncodeInput(TaskInput):
    """A prompt. ``negative_prompt`` describes the content to avoid; None disables guidance by it.

    ``items`` are embeddings of images that the prompt refers to, for editing, each [tokens, width].
    """

    #: Description of the content.
    prompt: str
    #: Content to avoid; None for no guidance by it.
    negative_prompt: str | None = None
    #: Embeddings [tokens, width] float32 of images that the prompt refers to, for editing.
    items: Tensors = Tensors()


class TextEncodeOutput(TaskOutput):
    #: [1 or 2, tokens, width] float32: the prompt and, where there is one, the negative prompt.
    embeds: Tensor
    #: [1 or 2, tokens] bool: which of them count.
    mask: Tensor
    #: Tokens of the prompt.
    tokens: OnDemand[Value[int]]


class TextEncode(UnitTask[TextEncodeInput, TextEncodeOutput]):
    """Encodes a prompt as guidance for a denoiser. Raises ``BadRequest`` for an invalid prompt or items."""

    kind: ClassVar[str] = "text-encode"
    service: ClassVar[str] = "encoder"


class Progress(Part):
    """Report of a finished step."""

    #: Number of the step, from 1.
    step: int = 0
    #: Steps there will be.
    steps: int = 0


class Preview(Progress):
    """Small preview of the unfinished image."""

    #: [height, width, 3] uint8.
    array: np.ndarray | None = None


class PriorInput(TaskInput):
    """An image to draft. ``width`` and ``height`` are pixels; 0 means the model's defaults.

    With ``seed`` None, the seed is the invocation's, and differs for each equal call.
    """

    #: Description of the content.
    prompt: str
    #: Pixels; 0: the model's default.
    width: int
    height: int
    #: Seed of sampling; None: the invocation's, different for each equal call.
    seed: int | None = None


class PriorOutput(TaskOutput):
    #: [1, 1, rows, columns] float32.
    tokens: OnDemand[Tensor]
    #: A part for each token.
    progress: OnDemand[Stream[Progress]]


class Prior(UnitTask[PriorInput, PriorOutput]):
    """A language model that drafts an image in tokens for a denoiser.

    Raises ``TooLarge`` for more pixels than the model supports, ``BadRequest`` for other invalid inputs.
    """

    kind: ClassVar[str] = "prior"


class DenoiseInput(TaskInput):
    """Image or video to generate from a ``TextEncode``'s ``embeds`` and ``mask``.

    ``width`` and ``height`` are pixels. 0 means those of ``image``, or without one the model's defaults. ``frames`` is
    1 for an image, and ``fps`` is frames per second of a video. ``steps`` is the number of denoising steps, ``every``
    that from one preview to the next. ``guidance`` is a factor, the distance from the negative prompt; None means the
    model's default. ``seed`` is that of the noise; None is the invocation's, and differs for each equal call. ``image``
    is latents of an image, [channels, 1, height, width], for editing and for video from an image. ``prior`` is tokens
    of a prior, [1, 1, rows, columns], for models that have one.
    """

    #: As those of ``TextEncodeOutput``.
    embeds: Tensor
    mask: Tensor
    #: Pixels; 0: those of ``image``, else the model's default.
    width: int
    height: int
    #: Frames of a video; 1 for an image.
    frames: int = 1
    #: Frames per second of a video, for models that are guided by it.
    fps: float | None = None
    #: Denoising steps.
    steps: int
    #: Factor of the distance from the negative prompt; None is the model's usual one.
    guidance: float | None = None
    #: Seed of the noise; None: the invocation's, different for each equal call.
    seed: int | None = None
    #: Steps from one preview to the next.
    every: int = 1
    #: Latents of an image, [channels, 1, height, width] float32, for editing and for video from an image.
    image: Tensor | None = None
    #: As ``PriorOutput.tokens``, for models that have a prior.
    prior: Tensor | None = None


class DenoiseOutput(TaskOutput):
    #: [channels, frames, height, width] float32, latents of an image or a video.
    latents: OnDemand[Tensor]
    #: [channels, time, bins] float32, latents of the sound of a video, for models that make both.
    sound: OnDemand[Tensor]
    #: A part for each step.
    progress: OnDemand[Stream[Progress]]
    #: A small image after every ``every`` steps.
    preview: OnDemand[Stream[Preview]]


class Denoise(UnitTask[DenoiseInput, DenoiseOutput]):
    """The diffusion transformer: noise to latents, step by step. Equal calls get different noise unless given a seed.

    Raises ``TooLarge`` for more pixels than the executor supports, ``BadRequest`` for an image, a prior or audio that
    the model does not have.
    """

    kind: ClassVar[str] = "denoise"


class DecodeInputs(TaskInput):
    """Latents of a ``Denoise``.

    [channels, frames, height, width], or [channels, time, bins] of audio.
    """

    #: As ``DenoiseOutput.latents``, for sound as ``DenoiseOutput.sound``.
    latents: Tensor


class DecodeImageOutput(TaskOutput):
    #: [height, width, 3] uint8.
    image: Tensor


class DecodeImage(UnitTask[DecodeInputs, DecodeImageOutput]):
    """A VAE's decoder: latents to an image. Raises ``BadRequest`` for latents of another model."""

    kind: ClassVar[str] = "decode-image"


class DecodeVideoOutput(TaskOutput):
    #: Frames in order, [frames, height, width, 3] uint8 at a time.
    frames: Stream[Tensor]


class DecodeVideo(UnitTask[DecodeInputs, DecodeVideoOutput]):
    """A video VAE's decoder: latents to frames. Raises as ``DecodeImage``."""

    kind: ClassVar[str] = "decode-video"


class DecodeAudioOutput(TaskOutput):
    #: Samples, float32 [n, channels] in [-1, 1], a second at a time.
    audio: Stream[Audio]


class DecodeAudio(UnitTask[DecodeInputs, DecodeAudioOutput]):
    """An audio VAE's decoder with its vocoder: latents to samples. Raises as ``DecodeImage``."""

    kind: ClassVar[str] = "decode-audio"
