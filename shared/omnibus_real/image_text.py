"""Text in images: PP-OCRv6 of the package ``rapidocr``."""

from typing import Any

from pydantic import BaseModel, PrivateAttr

from omnibus.task import TaskInput, TaskOutput, UnitTask, Value
from omnibus.task.library import PlacedMedia


class TextLine(BaseModel):
    """A line of text in an image."""

    #: Characters of the line.
    text: str
    #: Corners in pixels of the upright image: upper left, upper right, lower right, lower left, each (x, y).
    box: list[tuple[float, float]]
    #: Confidence from 0 to 1.
    score: float


class ImageToRead(TaskInput):
    """An image with printed text. Place your own pixels by ``Media.of(pixels)``."""

    #: As ``EncodeInput.media``: an image file of any format, or another task's image.
    media: PlacedMedia


class ReadText(TaskOutput):
    #: Lines in reading order: from top to bottom, and from left to right in a row.
    lines: Value[list[TextLine]]
    #: The same text, a line for each row of the image.
    text: Value[str]


class ReadImage(UnitTask[ImageToRead, ReadText]):
    """Reads the text of an image. Raises ``BadMedia`` for a file that is not an image, or without text."""

    _reader: Any = PrivateAttr(default=None)

    def load(self) -> None:
        raise NotImplementedError

    def run(self, image: ImageToRead) -> ReadText:
        raise NotImplementedError
