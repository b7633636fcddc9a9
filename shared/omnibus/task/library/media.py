"""Media encoders."""

from typing import Any, ClassVar

from omnibus.task.base import UnitTask
from omnibus.task.types import TaskInput, TaskOutput, Tensor


class EncodeInput(TaskInput):
    """One picture, video or sound as the gateway placed it: a handle, with modality, mime type and content hash."""

    media: Any


class EncodeOutput(TaskOutput):
    #: [tokens, width] float32.
    embedding: Tensor


class Encode(UnitTask[EncodeInput, EncodeOutput]):
    """Image, video or audio to an embedding. One vision encoder serves image and video."""

    kind: ClassVar[str] = "encode"
    service: ClassVar[str] = "encoder"
