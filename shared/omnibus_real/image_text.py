"""Text in images: PP-OCRv6 of the package ``rapidocr``, by onnxruntime."""

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
from pydantic import BaseModel, PrivateAttr

from omnibus.errors import BadMedia
from omnibus.task import Media, TaskInput, TaskOutput, UnitTask, Value
from omnibus.task.library import PlacedMedia
from omnibus_real.packages import count_threads, import_package

#: Pixels of one side of a blank image.
_BLANK_PIXELS = 64
#: Largest distance of the middles of two lines in a row, in heights of the lower one of them.
_ROW_DISTANCE = 0.5


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
    #: The same text, one line for each row of the image.
    text: Value[str]


class ReadImage(UnitTask[ImageToRead, ReadText]):
    """Reads the text of an image.

    Raises ``BadMedia`` for a file that is not an image, and for an image without text.
    """

    _reader: Any = PrivateAttr(default=None)
    #: Held while an image is read: each thread that calls a network computes as well.
    _turn: Lock = PrivateAttr(default_factory=Lock)

    def load(self) -> None:
        import_package("cv2").setNumThreads(count_threads())
        self._reader = import_package("rapidocr").RapidOCR(
            params={
                "Global.log_level": "error",
                "EngineConfig.onnxruntime.intra_op_num_threads": count_threads(),
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            }
        )
        for use_det in (False, True):  # networks are loaded when they are used; the last value holds for later calls
            self._reader(np.zeros((_BLANK_PIXELS, _BLANK_PIXELS, 3), np.uint8), use_det=use_det)

    def run(self, image: ImageToRead) -> ReadText:
        pixels = np.ascontiguousarray(_decode_pixels(image.media)[..., ::-1])
        with self._turn:
            result = self._reader(pixels)
        if not result.txts:
            raise BadMedia("no text was found in the image; send a sharper or larger one, upright and with contrast")
        lines = [
            TextLine(text=text, box=[(float(x), float(y)) for x, y in box], score=float(score))
            for text, box, score in zip(result.txts, result.boxes, result.scores, strict=True)
        ]
        rows = arrange_rows(lines)
        text = "\n".join(" ".join(line.text for line in row) for row in rows)
        return ReadText(lines=[line for row in rows for line in row], text=text)


def arrange_rows(lines: Sequence[TextLine]) -> list[list[TextLine]]:
    """Arrange ``lines`` in rows from top to bottom.

    Those of a row are sorted from left to right. They may differ a little in height, so that the amount of a receipt
    follows its item.
    """
    rows: list[list[TextLine]] = []
    for line in sorted(lines, key=_middle_of):
        if rows and abs(_middle_of(line) - _middle_of(rows[-1][0])) <= _ROW_DISTANCE * min(
            _height_of(line), _height_of(rows[-1][0])
        ):
            rows[-1].append(line)
        else:
            rows.append([line])
    return [sorted(row, key=lambda line: line.box[0][0]) for row in rows]


def _decode_pixels(media: Any) -> np.ndarray:
    """Return pixels uint8 [height, width, 3] of a file or another task's image."""
    from omnibus_models.media import decode_image

    if isinstance(media, np.ndarray) and media.ndim == 3:
        return media
    return np.asarray(decode_image(Media.content(media)))


def _middle_of(line: TextLine) -> float:
    return sum(y for _, y in line.box) / len(line.box)


def _height_of(line: TextLine) -> float:
    return max(y for _, y in line.box) - min(y for _, y in line.box)
