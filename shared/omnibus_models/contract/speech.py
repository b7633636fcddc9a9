"""Talkers and vocoders: a language model's rows to codes, and codes to samples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from omnibus_models.contract.base import ModelComponent, TokenSamplingParams
from omnibus_models.contract.language import Decoder, PrefillInputs

Code = int | Sequence[int]


class CodePredictor(Protocol):
    """Completes frames of codes from the first code of each."""

    vocabulary: int
    rest: int  # codes of a frame after the first one
    sampling: "TokenSamplingParams"  # sampling of codes, unless a frame's first one is chosen greedily

    def predict_remaining(self, hidden: Tensor, codes: Tensor, choose: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the other codes of each frame: [B, groups - 1] int64.

        ``codes`` [B] are the first ones, and ``hidden`` [B, H'] are the rows that they were chosen by. ``choose`` takes
        float32 logits [B, V] of the next code of each frame and returns the codes [B].
        """


class Talker(Decoder, Protocol):
    """Thinker rows in, codec codes out.

    Each step is one code, or with a ``predictor`` the first code of a frame.
    """

    max_codes: int  # steps of one answer
    steps_per_second: float  # of speech; 0: unknown
    bunch: int  # steps that share a message, because a vocoder can rarely use fewer
    predictor: CodePredictor | None

    def start(self, rows: Tensor, layout: Tensor, first: Tensor, voice: str) -> PrefillInputs:
        """Prefill of one answer.

        ``rows`` is [S + 3, H] from ``Thinker.talker_prompt``, ``layout`` is [k, S] of the thinker's prefill, and
        ``first`` [H] is the row of the first generated token. Raises ``BadRequest`` for an unknown voice.
        """

    def step_inputs(self, codes: Tensor, rows: Tensor) -> Tensor:
        """Return the inputs [B, H'] of one step.

        ``codes`` are the previous codes [B] or frames [B, groups], ``rows`` [B, H] the thinker's.
        """


class Vocoder(ModelComponent, Protocol):
    """Codec codes to waveform."""

    rate: int  # samples per second
    samples_per_code: int
    groups: int  # codes of one frame; 1 if each code is a frame

    def open(self, voice: str, seed: int) -> "Vocoding":
        """Begin one waveform. ``seed`` fixes the noise. Raises ``BadRequest`` for an unknown voice."""


class Vocoding(Protocol):
    """One waveform in progress: a cursor over samples, so that none is lost or duplicated."""

    def push(self, codes: Sequence[Code], last: bool) -> Tensor:
        """Append codes and return the samples that became final, float32 [n] in [-1, 1].

        n may be 0. With ``last``, all remaining samples are returned. The concatenation over all calls equals the
        one-shot waveform to 1e-5 for any split of the codes. Raises ``BadRequest`` for invalid codes.
        """

    def skip(self, samples: int) -> int:
        """Skip work for the first ``samples``, which the caller has; return the first output sample.

        It is ``samples`` or less. Call this before the first codes, which still start from the very first one.
        """


@dataclass(frozen=True)
class SpeakingOptions:
    """Options of speech from text.

    ``voice`` is a name of ``Speaker.voices``. ``speed`` is a factor, for speakers with ``sets_speed``. ``temperature``
    0 is greedy, and ``max_tokens`` limits the steps; None is the checkpoint's own.
    """

    voice: str
    speed: float = 1.0
    temperature: float | None = None
    max_tokens: int | None = None


@dataclass(frozen=True)
class VocoderCall:
    """The arguments with which a model calls its vocoder: tensors and plain values.

    With ``partial`` there is one tensor: codes that follow earlier ones on the last axis. A call with all of them ends
    the series.
    """

    args: Sequence[Any]
    named: Mapping[str, Any]
    partial: bool = False


class Speaker(ModelComponent, Protocol):
    """A text-to-speech model without its vocoder."""

    voices: Sequence[str]
    sets_speed: bool  # whether it speaks at ``SpeakingOptions.speed`` itself

    def require_options(self, options: SpeakingOptions) -> None:
        """Raise ``BadRequest`` for an option that the model lacks.

        It lists the voices for an unknown voice.
        """

    def split_text(self, text: str) -> Sequence[str]:
        """Return the parts of ``text`` that are spoken one after another; usually its sentences.

        Raises ``BadRequest`` if the model can read no character of it.
        """

    def count_tokens(self, text: str, options: SpeakingOptions) -> int:
        """Return the number of tokens of ``text`` that the model reads."""

    def speak(
        self,
        text: str,
        options: SpeakingOptions,
        seed: int,
        send: Callable[[VocoderCall], None],
        check: Callable[[], None],
    ) -> None:
        """Speak ``text``, and ``send`` the calls of the vocoder.

        ``seed`` fixes all noise. ``check`` is called in each step, and its exceptions end the speech.
        """


class Synthesizer(ModelComponent, Protocol):
    """The vocoder of a ``Speaker``."""

    rate: int  # samples per second
    codes_per_second: float  # of calls with ``partial``; 0: there are none

    def synthesize(self, call: VocoderCall) -> Tensor:
        """Return the samples of ``call``, float32 [n] in [-1, 1]."""
