"""Components that make pictures, videos and sound step by step: text encoders, denoisers, decoders."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from omnibus_models.contract.base import Encoded, ModelComponent, Prepared


class TextEncoder(ModelComponent, Protocol):
    """Prompts in, what guides a denoiser out. Prompts are ``Prepared`` of the modality ``text``.

    A negative prompt guides away from something; with ``twins`` ``prepare_negative`` makes it of the prompt itself.
    With ``films`` prompts are for videos: each is a batch of its own, so that a video does not depend on others.
    """

    films: bool
    twins: bool

    def prepare(self, prompt: str, items: Sequence[Encoded] = ()) -> Prepared:
        """Tokenise one prompt. CPU only, thread-safe.

        ``items``: embeddings of the pictures that it is about, on the CPU. Raises ``BadRequest`` when the prompt holds
        one of the model's control tokens or for pictures that the model does not take, and ``ContextTooLong``.
        """

    def prepare_negative(self, prompt: str, negative: str) -> Prepared:
        """Prepare the input that ``prompt`` is guided away from; only for models with ``twins``.

        Raises as ``prepare`` does, and ``BadRequest`` for a ``negative`` prompt where the model takes none.
        """

    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Run one batch of prompts of any length and request: [n_tokens, W] each, to 1e-5 as one by one."""


class FrameEncoder(ModelComponent, Protocol):
    """The encoder of a video's VAE: an image to the latents of the first frame. Two calls may run side by side."""

    unit: int  # pixels that are one latent, on either side

    def prepare(self, data: memoryview, width: int, height: int) -> Tensor:
        """Decode one file and bring it to ``width`` and ``height``: float32 [3, height, width] in [-1, 1].

        CPU only, thread-safe. Raises ``BadMedia`` and ``TooLarge``, see ``MediaEncoder``.
        """

    def encode(self, pixels: Tensor) -> Tensor:
        """[3, height, width] to float32 [channels, 1, rows, columns] on the CPU, as a ``Denoiser`` takes them."""


@dataclass(frozen=True)
class ImageSpec:
    """A picture that is to be made; a video when it has more than one frame. Sizes are in pixels.

    ``guidance`` None is the family's usual one. ``seed`` fixes the noise, the same on every device. ``fps`` are the
    frames per second of a video.
    """

    width: int
    height: int
    steps: int
    seed: int
    guidance: float | None = None
    frames: int = 1
    fps: float = 24.0


class Denoising(Protocol):
    """One picture in the making: latents and where they stand. It has all the state that there is.

    Those of one ``shape`` can take a step together. A step of this one takes ``rows`` rows of a batch (two where
    a negative prompt guides as well) of ``tokens`` positions each. ``done`` counts its steps.
    """

    @property
    def shape(self) -> Hashable: ...

    @property
    def rows(self) -> int: ...

    @property
    def tokens(self) -> int: ...

    @property
    def steps(self) -> int: ...

    @property
    def done(self) -> int: ...


@runtime_checkable
class Resumable(Protocol):
    """A ``Denoising`` that can go on elsewhere: another one, opened with the same inputs, resumes its state."""

    def state(self) -> Tensor:
        """All that the steps so far have changed, float32 [n] on the CPU."""

    def resume(self, state: Tensor, done: int) -> None:
        """Stand where another one stood after ``done`` steps."""


class Stepper(ModelComponent, Protocol):
    """Component that makes pictures step by step, many at a time."""

    @property
    def default_size(self) -> tuple[int, int]:
        """Width and height of a picture when nobody says otherwise."""

    def step(self, batch: Sequence[Any]) -> None:
        """One step of each; all have one shape, none is done. All take it, or none when this raises.

        The latents are those of steps alone to 1e-5, whoever else is in the batch.
        """

    def latents(self, denoising: Any) -> Tensor:
        """[channels, frames, height, width] float32, as a decoder takes them."""


class Denoiser(Stepper, Protocol):
    """A diffusion transformer: noise to latents, one step at a time.

    A language model that makes pictures is one too: a step is a token, and latents are tokens, [1, 1, rows, columns].
    How many steps there are is then its own choice.

    ``edits``: whether ``open`` takes an ``image``, latents of the picture that this one is made of, as ``latents``
    gives them, or of the first frame of a video; ``unit`` is then how many pixels of it are one latent, on either
    side. ``follows``: whether ``open`` takes a ``prior``, the latents of one. ``sounds``: whether it makes the sound of
    a video as well.
    """

    edits: bool
    unit: int
    follows: bool
    sounds: bool

    def open(self, picture: ImageSpec, guides: Sequence[Tensor]) -> Denoising:
        """Begin a picture. ``guides`` [T, W]: the prompt and, where there is one, the negative prompt.

        Raises ``BadRequest`` for a size or a number of steps that the model cannot make, and without an image or a
        prior where it needs one.
        """

    def audio_latents(self, denoising: Any) -> Tensor:
        """[channels, time, bins] float32 of the sound, as a decoder takes them, where it ``sounds``."""

    def palette(self) -> Tensor:
        """Return the decoder's colours for ``preview``. May load the decoder for a moment: keep the result."""

    def preview(self, denoising: Any, palette: Tensor) -> Tensor:
        """A small picture of what the latents promise after the last step, uint8 [height, width, 3]."""


class PriorModel(Stepper, Protocol):
    """A language model that draws a picture roughly, one token in a step, for a denoiser to follow.

    Its latents are the tokens, [1, 1, rows, columns].
    """

    def open(self, picture: ImageSpec, prompt: str) -> Denoising:
        """Begin a picture, of which the sides and the seed count.

        Raises ``BadRequest`` for sides that the model cannot make and for control tokens, and ``ContextTooLong``.
        """


class ImageDecoder(ModelComponent, Protocol):
    """The decoder of a VAE. It may keep caches on its module, so one call at a time."""

    def decode(self, latents: Tensor) -> Tensor:
        """[channels, 1, height, width] latents to a picture, uint8 [H, W, 3]. Raises ``BadRequest`` for others."""


class VideoDecoder(ModelComponent, Protocol):
    """The decoder of a video's VAE, one call at a time."""

    def decode(self, latents: Tensor) -> Tensor:
        """[channels, frames, height, width] latents to a video, uint8 [frames', H, W, 3]. Raises ``BadRequest``."""


class AudioDecoder(ModelComponent, Protocol):
    """The decoder of a sound's VAE with its vocoder, one call at a time."""

    rate: int  # samples per second

    def decode(self, latents: Tensor) -> Tensor:
        """[channels, time, bins] latents to float32 [samples, channels'] in [-1, 1]. Raises ``BadRequest``."""
