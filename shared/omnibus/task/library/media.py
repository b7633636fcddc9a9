"""Media encoders, and the encoder of a video's first frame."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import SkipValidation, WithJsonSchema

from omnibus.task.base import UnitTask
from omnibus.task.types import OnDemand, TaskInput, TaskOutput, Tensor, Value

#: A file as the gateway placed it, for a client or for ``Media.of``, or another task's image tensor. Encoders check it.
PlacedMedia = Annotated[Mapping[str, Any] | Tensor, SkipValidation, WithJsonSchema({})]


class EncodeInput(TaskInput):
    """Image, video or audio of a client, an app or another task."""

    #: A file as the gateway placed it, for a client or for ``Media.of``: a handle of its bytes, uint8 [n], with
    #: ``modality``, ``mime``, ``sha256`` and ``nbytes``. Or another task's tensor: an image uint8 [height, width, 3].
    media: PlacedMedia


class EncodeOutput(TaskOutput):
    #: [tokens, width] float32; of a VAE's encoder, which edits images, latents [channels, 1, height, width] float32.
    embedding: Tensor
    #: The number of tokens of the item.
    tokens: OnDemand[Value[int]]


class Encode(UnitTask[EncodeInput, EncodeOutput]):
    """Image, video or audio to an embedding. One vision encoder serves image and video.

    Raises ``BadMedia`` for a file that cannot be decoded, ``TooLarge`` for too many pixels, frames or seconds, and
    ``BadRequest`` for another modality.
    """

    kind: ClassVar[str] = "encode"
    service: ClassVar[str] = "encoder"


class FrameInput(TaskInput):
    """First image of a video, or image to start from, of ``width`` and ``height`` pixels."""

    #: As ``EncodeInput.media``, an image.
    media: PlacedMedia
    #: Pixels; 0: those of the image, at most about a megapixel, for models that make images.
    width: int
    height: int
    #: Frames of the video; 1 for an image.
    frames: int = 1
    #: Seed of the noise, as the denoiser's, for encoders that draw some; None: the invocation's.
    seed: int | None = None
    #: As ``EncodeInput.media``, an image of the same size whose transparent pixels, or else white ones, are to change.
    mask: PlacedMedia | None = None
    #: How much to change of an image, from 0 to 1; None: as the model does.
    strength: float | None = None


class FrameOutput(TaskOutput):
    #: Latents [channels, 1, height, width] float32, as ``DenoiseInput.image`` takes them.
    latents: Tensor


class EncodeFrame(UnitTask[FrameInput, FrameOutput]):
    """An image to the first latent frame of a video, or to latents to start from. Raises as ``Encode``."""

    kind: ClassVar[str] = "encode-frame"
    service: ClassVar[str] = "encoder"
