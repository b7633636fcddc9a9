"""Components that generate images, videos and audio in steps.

They are text encoders, denoisers and decoders.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from omnibus_models.contract.base import Encoded, ModelComponent, Prepared


class TextEncoder(ModelComponent, Protocol):
    """Encodes prompts to guide a denoiser. Prompts are ``Prepared`` of the modality ``text``.

    A negative prompt guides away from something. With ``twins``, ``prepare_negative`` derives it from the prompt. With
    ``films``, prompts are for videos. Each is then a separate batch, so that a video does not depend on others. With
    ``joins``, ``prepare_negative`` prepares both prompts as one, whose rows guide as both.
    """

    films: bool
    joins: bool
    twins: bool

    def prepare(self, prompt: str, items: Sequence[Encoded] = ()) -> Prepared:
        """Tokenise one prompt. CPU only, thread-safe.

        ``items`` are embeddings of the images that the prompt is about, on the CPU. Raises ``BadRequest`` if the prompt
        contains a control token of the model, or has images that the model does not take. Also raises
        ``ContextTooLong``.
        """

    def prepare_negative(self, prompt: str, negative: str, items: Sequence[Encoded] = ()) -> Prepared:
        """Prepare the negative prompt that guides away from ``prompt``; only for models with ``twins`` or ``joins``.

        Raises as ``prepare`` does, and ``BadRequest`` for a ``negative`` prompt if the model takes none.
        """

    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Run one batch of prompts of any length and request: [n_tokens, W] each.

        Results equal those of single prompts to 1e-5.
        """


@dataclass(frozen=True)
class ImageSpec:
    """Specification of an image, or of a video with several frames. Sizes are in pixels.

    ``guidance`` None is the family's usual one. ``seed`` fixes the noise, the same on every device. ``fps`` is the
    frame rate of a video.
    """

    width: int
    height: int
    steps: int
    seed: int
    guidance: float | None = None
    frames: int = 1
    fps: float = 24.0


@dataclass(frozen=True)
class ImageChange:
    """Change of an image: its place, by the image file ``mask``, and its ``strength`` in [0, 1].

    A transparent pixel of the mask is one to change, or a white one if the file has no transparency.
    """

    mask: memoryview | None = None
    strength: float | None = None


NO_CHANGE = ImageChange()


class FrameEncoder(ModelComponent, Protocol):
    """The encoder of a VAE: an image to the latents of a video's first frame, or of an image to start from.

    Two calls may run in parallel. With ``edits`` it also encodes for images, whose size may be 0.
    """

    unit: int  # pixels per latent, on either side
    edits: bool

    def prepare(self, data: memoryview, picture: ImageSpec, change: ImageChange = NO_CHANGE) -> Tensor:
        """Decode one file and resize it to the size of ``picture``: float32 [3, height, width] in [-1, 1].

        CPU only, thread-safe. Raises ``BadMedia`` and ``TooLarge``, see ``MediaEncoder``, and ``BadRequest`` for a
        ``change`` that the model cannot make. The form of what an encoder with ``edits`` returns is its own. It chooses
        the size of a picture without one, and raises ``BadRequest`` if its model takes no images.
        """

    def encode(self, pixels: Tensor) -> Tensor:
        """Encode what ``prepare`` returned to float32 [channels, 1, rows, columns] on the CPU, or a form of its own."""


class Denoising(Protocol):
    """One image in progress: its latents and its progress. It has the whole state.

    Denoisings of one ``shape`` can take a step together. A step of this one takes ``rows`` rows of a batch (two if a
    negative prompt guides as well) of ``tokens`` positions each. ``done`` counts its steps.
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
    """A ``Denoising`` that can continue elsewhere: another one with the same inputs resumes its state."""

    def state(self) -> Tensor:
        """Return all that the steps have changed, float32 [n] on the CPU."""

    def resume(self, state: Tensor, steps: int) -> None:
        """Continue from the ``state`` of another one after ``steps`` steps."""


class Stepper(ModelComponent, Protocol):
    """Component that generates images in steps, many at a time."""

    @property
    def default_size(self) -> tuple[int, int]:
        """Width and height of an image by default."""

    def step(self, batch: Sequence[Any]) -> None:
        """Take one step of each; all have one ``shape``, none is done. Either all take it or this raises.

        The latents equal those of steps alone to 1e-5, for any batch.
        """

    def latents(self, denoising: Any) -> Tensor:
        """Return the input of a decoder, [channels, frames, height, width] float32, or uint8 of the family's form."""


class Denoiser(Stepper, Protocol):
    """A diffusion transformer: noise to latents, one step at a time.

    A language model that generates images is one too. A step is then a token, latents are tokens, [1, 1, rows,
    columns], and the model determines the number of steps.

    With ``edits``, ``open`` takes an ``image``: latents of the source image or of a video's first frame, in the form
    that ``latents`` returns, or of the family's own form. ``image_size`` is then its width and height. With
    ``follows``, ``open`` takes a ``prior``, the latents of a prior model. With ``sounds``, it also generates the audio
    of a video.
    """

    edits: bool
    follows: bool
    sounds: bool

    def open(self, picture: ImageSpec, guides: Sequence[Tensor]) -> Denoising:
        """Begin an image. ``guides`` [T, W] are the prompt and, optionally, the negative prompt, or both ``joins``.

        Raises ``BadRequest`` for an unsupported size or number of steps, and without a required image or prior.
        """

    def image_size(self, image: Tensor) -> tuple[int, int]:
        """Return the width and height in pixels of an ``image`` for ``open``; only with ``edits``."""

    def audio_latents(self, denoising: Any) -> Tensor:
        """Return [channels, time, bins] float32 of the audio, a decoder's input; only with ``sounds``."""

    def palette(self) -> Tensor:
        """Return the decoder's colours for ``preview``. May load the decoder for a moment: keep the result."""

    def preview(self, denoising: Any, palette: Tensor) -> Tensor:
        """Return a small preview of the final image, uint8 [height, width, 3]."""


class PriorModel(Stepper, Protocol):
    """A language model that generates a rough image for a denoiser.

    Its latents are the tokens, [1, 1, rows, columns].
    """

    def open(self, picture: ImageSpec, prompt: str) -> Denoising:
        """Begin an image, of which only the sides and the seed count.

        Raises ``BadRequest`` for unsupported sides and for control tokens, and ``ContextTooLong``.
        """


class ImageDecoder(ModelComponent, Protocol):
    """The decoder of a VAE. It may keep caches on its module, so make one call at a time."""

    def decode(self, latents: Tensor) -> Tensor:
        """Decode [channels, 1, height, width] latents to an image, uint8 [H, W, 3].

        Raises ``BadRequest`` for other shapes.
        """


class VideoDecoder(ModelComponent, Protocol):
    """The decoder of a video's VAE, one call at a time."""

    def decode(self, latents: Tensor) -> Tensor:
        """Decode [channels, frames, height, width] latents to video, uint8 [frames', H, W, 3].

        Raises ``BadRequest`` for other shapes.
        """


class AudioDecoder(ModelComponent, Protocol):
    """The decoder of an audio VAE with its vocoder. One call at a time."""

    rate: int  # samples per second

    def decode(self, latents: Tensor) -> Tensor:
        """Decode [channels, time, bins] latents to float32 [samples, channels'] in [-1, 1].

        Raises ``BadRequest`` for other shapes.
        """
