"""Speech: hidden rows or text to codec codes, codes to audio."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from pydantic import BaseModel, ConfigDict, SkipValidation
from typing_extensions import TypedDict

from omnibus.errors import BadRequest
from omnibus.task.base import CompositeTask, UnitTask
from omnibus.task.result import Part
from omnibus.task.types import OnDemand, Stream, TaskInput, TaskOutput, Tensor, Value


class Codes(Part):
    """Codec codes, in order. ``await`` of a stream returns the list of all."""

    #: Whole numbers; a list of them per frame where a codec has several.
    codes: list[Any] = []

    @classmethod
    def join(cls, parts: Sequence["Codes"]) -> list[Any]:
        return list(chain.from_iterable(part.codes for part in parts))


class Audio(Part):
    """Samples of audio. ``await`` of a stream returns one ``Audio`` with all of them."""

    #: Samples per second.
    rate: int = 24000
    #: float32 [n] in [-1, 1], or [n, channels].
    array: np.ndarray | None = None

    @classmethod
    def join(cls, parts: Sequence["Audio"]) -> "Audio":
        arrays = [part.array for part in parts if part.array is not None]
        rate = parts[0].rate if parts else 24000
        return Audio(rate=rate, array=np.concatenate(arrays) if arrays else np.zeros(0, np.float32))


class SpeechParams(TypedDict, total=False):
    """Sampling parameters of speech; missing ones have the engine's defaults.

    ``max_codes`` limits the speech, in codes of the codec. ``temperature`` is 0 (greedy) to 2, and ``top_p`` above 0 up
    to 1. ``top_k`` is a number of codes (0: all), and ``repetition_penalty`` a factor from 0.01 to 10. ``seed`` None is
    the invocation's.
    """

    max_codes: int | None
    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    seed: int | None


#: Parameters, or their JSON encoded before. The engine checks them.
SpeakParams = Annotated[SpeechParams | msgspec.Raw, SkipValidation]
#: A text, one that another task makes, or the handle of its JSON when it is long. The engine checks it.
SpokenText = Annotated[str | Value[str] | Mapping[str, Any], SkipValidation]


class TalkInput(TaskInput):
    """Speech to generate from a ``Think``'s ``prompt``, ``layout`` and ``rows``.

    It is spoken in the ``voice`` of that name.

    ``params`` are ``max_codes``, ``temperature``, ``top_k``, ``top_p`` and ``repetition_penalty``, a dict or its JSON.
    """

    #: As those of ``ThinkOutput``.
    prompt: Tensor
    layout: Tensor
    rows: Stream[Tensor]
    #: ``max_codes``, ``temperature`` (0: greedy), ``top_k``, ``top_p``, ``repetition_penalty``, ``seed``; a dict, or
    #: its JSON as ``msgspec.Raw``.
    params: SpeakParams = {}
    #: Name of one of the model's voices.
    voice: str


class TalkOutput(TaskOutput):
    #: Codes as they are made.
    codes: OnDemand[Stream[Codes]]


class Talk(UnitTask[TalkInput, TalkOutput]):
    """The talker of an omni model: a thinker's hidden rows to codec codes, as the rows arrive.

    Raises ``BadRequest`` for params or a voice that the model does not have, ``ContextTooLong`` for a prompt without
    room for codes.
    """

    kind: ClassVar[str] = "talk"
    service: ClassVar[str] = "llm"


class SayInput(TaskInput):
    """A ``text`` to speak with ``voice``, following ``instructions``; ``params`` as in ``TalkInput``."""

    #: Text to speak: a string.
    text: SpokenText
    #: Name of one of the model's voices.
    voice: str
    #: Style of the speech, for models that follow instructions.
    instructions: str | None = None
    #: As ``TalkInput.params``.
    params: SpeakParams = {}


class SayOutput(TaskOutput):
    #: Codes as they are made.
    codes: OnDemand[Stream[Codes]]


class Say(UnitTask[SayInput, SayOutput]):
    """The language model of a text-to-speech model: text to codec codes. Raises as ``Talk``."""

    kind: ClassVar[str] = "say"
    service: ClassVar[str] = "llm"


class VocodeInput(TaskInput):
    """Codec codes as they arrive, and the name of the voice."""

    #: Codes of the codec that the vocoder belongs to.
    codes: Stream[Codes]
    #: Name of one of the model's voices.
    voice: str


class VocodeOutput(TaskOutput):
    #: Samples, float32 [n] in [-1, 1], as soon as there are codes for them.
    audio: Stream[Audio]


class Vocode(UnitTask[VocodeInput, VocodeOutput]):
    """The vocoder: codes to waveform, as the codes arrive. Raises ``BadRequest`` for codes of another codec."""

    kind: ClassVar[str] = "vocode"


class SpeakingParams(TypedDict, total=False):
    """Parameters of a text-to-speech model; missing ones have the checkpoint's defaults.

    ``speed`` is a factor from 0.25 to 4. Some models have a ``temperature``, 0 (greedy) to 2, and ``max_tokens``. Other
    models refuse both. ``seed`` None is the invocation's.
    """

    speed: float
    temperature: float | None
    max_tokens: int | None
    seed: int | None


class SpeakInput(TaskInput):
    """A ``text`` to speak."""

    #: Text to speak: a string.
    text: SpokenText
    #: Name of one of the model's voices; "" is its first.
    voice: str = ""
    #: As ``SpeakingParams``, or their JSON. The engine checks them.
    params: Annotated[SpeakingParams | msgspec.Raw, SkipValidation] = {}


class SpeakOutput(TaskOutput):
    #: Calls of the model's own vocoder, whose tensors are bytes.
    calls: Stream[Tensor]


class Speak(UnitTask[SpeakInput, SpeakOutput]):
    """A text-to-speech model without its vocoder: text to the vocoder's input.

    Raises ``BadRequest`` for a voice or parameter that the model does not have.
    """

    kind: ClassVar[str] = "speak"
    service: ClassVar[str] = "llm"


class SynthesizeInput(TaskInput):
    """Calls of the vocoder of a ``Speak``."""

    #: As ``SpeakOutput.calls`` of the same model.
    calls: Stream[Tensor]


class SynthesizeOutput(TaskOutput):
    #: Samples, float32 [n] in [-1, 1], sentence by sentence or as codes arrive.
    audio: Stream[Audio]


class Synthesize(UnitTask[SynthesizeInput, SynthesizeOutput]):
    """The vocoder of a text-to-speech model. Raises ``BadRequest`` for calls of another vocoder."""

    kind: ClassVar[str] = "synthesize"


class SpeechInput(BaseModel):
    """Text to speak."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    #: As those of ``SayInput``.
    text: SpokenText
    voice: str
    instructions: str | None = None
    params: SpeakParams = {}
    #: Expected codes of the speech, for load estimates.
    codes: int = 1024


class SpeechOutput(BaseModel):
    """Spoken text."""

    #: Stream of ``Audio``.
    audio: SkipValidation[Stream[Audio]]


class Speech(CompositeTask[SpeechInput, SpeechOutput]):
    """Text to speech: a language model of codes and a vocoder, pipelined by chunks."""

    #: From text to codes.
    speaker: Say
    #: From codes to a waveform.
    vocoder: Vocode

    def invoke(self, request: SpeechInput) -> SpeechOutput:
        speech_codes = self.speaker.invoke(
            SayInput(text=request.text, voice=request.voice, instructions=request.instructions, params=request.params),
            work=request.codes,
        )
        sound = self.vocoder.invoke(VocodeInput(codes=speech_codes.codes, voice=request.voice), work=request.codes)
        return SpeechOutput(audio=sound.audio)


class TextToSpeechInput(BaseModel):
    """A text for a text-to-speech model."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    #: As those of ``SpeakInput``.
    text: SpokenText
    voice: str = ""
    params: Annotated[SpeakingParams | msgspec.Raw, SkipValidation] = {}
    #: Expected tokens of the text, for load estimates.
    work: int = 1

    @property
    def string(self) -> str:
        """The text of an app's client. Raises ``BadRequest`` for a text of another task."""
        if not isinstance(self.text, str):
            raise BadRequest("the text is not a string", param="input")
        return self.text


class TextToSpeech(CompositeTask[TextToSpeechInput, SpeechOutput]):
    """Text to speech: a model, then its vocoder, sentence by sentence."""

    #: From text to the vocoder's input.
    speaker: Speak
    #: From that to a waveform.
    vocoder: Synthesize

    def invoke(self, request: TextToSpeechInput) -> SpeechOutput:
        speech = self.speaker.invoke(
            SpeakInput(text=request.text, voice=request.voice, params=request.params), work=request.work
        )
        sound = self.vocoder.invoke(SynthesizeInput(calls=speech.calls), work=request.work)
        return SpeechOutput(audio=sound.audio)
