"""Talkers and vocoders: a language model's rows in, codes, and samples out."""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from omnibus_models.contract.base import ModelComponent, TokenSamplingParams
from omnibus_models.contract.language import Decoder, PrefillInputs

Code = int | Sequence[int]


class CodePredictor(Protocol):
    """Makes frames of codes out of the first code of each."""

    vocabulary: int
    sampling: "TokenSamplingParams"  # how codes are chosen, when a frame's first one is not chosen greedily

    def predict_remaining(self, hidden: Tensor, codes: Tensor, choose: Callable[[Tensor], Tensor]) -> Tensor:
        """The other codes of each frame: ``hidden`` [B, H'] and first ``codes`` [B] to int64 [B, groups - 1].

        ``hidden`` is what the first codes were chosen by. ``choose`` takes float32 logits [B, V] of the next code
        of each frame and gives the codes [B].
        """


class Talker(Decoder, Protocol):
    """Thinker rows in, codec codes out: one code per step, or with a ``predictor`` the first code of a frame."""

    max_codes: int  # steps of one answer
    steps_per_second: float  # of speech; 0: not known
    bunch: int  # steps that share a message, because a vocoder can rarely use fewer
    predictor: CodePredictor | None

    def start(self, rows: Tensor, layout: Tensor, first: Tensor, voice: str) -> PrefillInputs:
        """Prefill of one answer.

        ``rows`` [S + 3, H] from ``Thinker.talker_prompt``, ``layout`` [k, S] of the thinker's prefill and
        ``first`` [H], the row of the first generated token. Raises ``BadRequest`` for an unknown voice.
        """

    def step_inputs(self, codes: Tensor, rows: Tensor) -> Tensor:
        """Inputs of one step: previous ``codes`` [B] or frames [B, groups], thinker ``rows`` [B, H] to [B, H']."""


class Vocoder(ModelComponent, Protocol):
    """Codec codes to waveform."""

    rate: int  # samples per second
    samples_per_code: int
    groups: int  # codes of one frame; 1 where each code is one

    def open(self, voice: str, seed: int) -> "Vocoding":
        """Begin one waveform. ``seed`` fixes the noise. Raises ``BadRequest`` for an unknown voice."""


class Vocoding(Protocol):
    """One waveform in the making: a cursor over samples, so that none is lost or doubled."""

    def push(self, codes: Sequence[Code], last: bool) -> Tensor:
        """Take codes and return the samples that have become final, float32 [n] in [-1, 1], n may be 0.

        With ``last`` everything that is left comes out. The concatenation over all calls equals the
        one-shot waveform to 1e-5, however the codes are cut. Raises ``BadRequest`` for codes that there are not.
        """

    def skip(self, samples: int) -> int:
        """Make nothing that only the first ``samples`` need: somebody has them. Called before the first codes, which
        come from the first one on all the same. Returns the sample that the output begins with, ``samples`` or less.
        """
