"""Recognizers: recordings to transcripts."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, NotRequired

import msgspec
from pydantic import BaseModel, ConfigDict, SkipValidation
from typing_extensions import TypedDict

from omnibus.task.base import CompositeTask, UnitTask
from omnibus.task.library.media import Encode, EncodeInput, PlacedMedia
from omnibus.task.result import Part
from omnibus.task.types import Stream, TaskInput, TaskOutput, Tensor


class TranscriptSegment(TypedDict):
    """A part of a transcript.

    ``start`` and ``end`` are seconds in the recording. ``tokens`` are those of ``text``. The other figures are those of
    the segment's window. ``avg_logprob`` is the mean of its tokens, ``compression_ratio`` that of its text by zlib.
    ``no_speech_prob`` is a probability, and ``seek`` the window's beginning in hundredths of a second. Apps may omit
    them.
    """

    start: float
    end: float
    text: str
    tokens: NotRequired[list[int]]
    avg_logprob: NotRequired[float]
    compression_ratio: NotRequired[float]
    no_speech_prob: NotRequired[float]
    temperature: NotRequired[float]
    seek: NotRequired[int]


class TranscriptWord(TypedDict):
    """A word of a transcript; ``start`` and ``end`` are seconds in the recording."""

    word: str
    start: float
    end: float


class TranscriptChunk(Part):
    """More of a transcript. ``await`` of a stream returns the whole text."""

    #: Characters of the text.
    text: str = ""
    #: Segments of a window that is complete, if they are requested.
    segments: list[TranscriptSegment] = []
    #: Words of a window that is complete, if they are requested.
    words: list[TranscriptWord] = []
    #: The English name of the language, in the last chunk.
    language: str = ""
    #: The length of the recording, in the last chunk.
    seconds: float = 0.0
    #: In the last chunk ``stop``, or ``length`` if the text of a window was cut.
    finish_reason: str = ""
    #: Numbers of tokens by kind, with ``audio_tokens`` and ``completion_tokens``, in the last chunk.
    usage: dict[str, int] = {}

    @classmethod
    def join(cls, parts: Sequence["TranscriptChunk"]) -> str:
        return "".join(part.text for part in parts)


class TranscribeParams(TypedDict, total=False):
    """Parameters of a transcript.

    ``language`` is an ISO 639 code or an English name; without it the language is detected, if the model can. With
    ``translate`` the text is English. ``prompt`` is text before the recording. ``segments`` requests segments, by the
    timestamps of a model that has them, else one for each window. ``words`` requests times of words. ``temperature`` is
    0 (greedy) to 2. ``max_tokens`` limits the text of a window. ``seed`` None is the invocation's.
    """

    language: str | None
    translate: bool
    prompt: str
    segments: bool
    words: bool
    temperature: float
    max_tokens: int | None
    seed: int | None


class TranscribeInput(TaskInput):
    """A recording after its encoder."""

    #: As ``EncodeOutput.embedding`` of the same model's audio encoder.
    audio: Tensor
    #: As ``TranscribeParams``, or their JSON. The engine checks them.
    params: Annotated[TranscribeParams | msgspec.Raw, SkipValidation] = {}


class TranscribeOutput(TaskOutput):
    #: The transcript.
    text: Stream[TranscriptChunk]


class Transcribe(UnitTask[TranscribeInput, TranscribeOutput]):
    """The decoder of a recognizer: rows of an audio encoder to text.

    Raises ``BadRequest`` for a language or parameter that the model does not have.
    """

    kind: ClassVar[str] = "transcribe"
    service: ClassVar[str] = "llm"


class RecordingInput(BaseModel):
    """A recording to transcribe."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    #: As ``EncodeInput.media``: an audio file.
    media: PlacedMedia
    #: As ``TranscribeInput.params``.
    params: Annotated[TranscribeParams | msgspec.Raw, SkipValidation] = {}
    #: Expected tokens of the audio, and of the text, for load estimates.
    work: int = 1
    answer: int = 1


class Transcript(BaseModel):
    """A transcribed recording."""

    #: Stream of ``TranscriptChunk``.
    text: SkipValidation[Stream[TranscriptChunk]]


class SpeechRecognition(CompositeTask[RecordingInput, Transcript]):
    """A recording to text: an audio encoder, then a decoder that attends to its rows."""

    #: The audio encoder.
    encoder: Encode
    #: The text decoder.
    transcriber: Transcribe

    def invoke(self, request: RecordingInput) -> Transcript:
        audio = self.encoder.invoke(EncodeInput(media=request.media), work=request.work).embedding
        output = self.transcriber.invoke(
            TranscribeInput(audio=audio, params=request.params), work=request.work + request.answer
        )
        return Transcript(text=output.text)
