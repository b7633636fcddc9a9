"""Speech recognizers: rows of an audio encoder to text, window by window."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from omnibus_models.contract.base import MediaEncoder
from omnibus_models.contract.language import Decoder, PrefillInputs

#: Changes logits [V] of the next token, given all tokens so far.
LogitRule = Callable[[Sequence[int], Tensor], Tensor]


@dataclass(frozen=True)
class RecognitionOptions:
    """Options of a transcript.

    ``language`` is an ISO 639 code, or None if it is to be detected. With ``translate`` the text is English.
    ``prompt`` is text before the first window. With ``timestamps`` a window has several segments, if the model can.
    ``words`` requests times of words.
    """

    language: str | None = None
    translate: bool = False
    prompt: str = ""
    timestamps: bool = False
    words: bool = False


class AudioWindow(NamedTuple):
    """A part of a recording that a model reads at once: its ``rows``, and its seconds in the recording."""

    begin: float
    end: float
    rows: int


class TokenSegment(NamedTuple):
    """Tokens of one segment, and its seconds in its window."""

    begin: float
    end: float
    ids: tuple[int, ...]


class TimedWord(NamedTuple):
    """A word, and its seconds in its window."""

    begin: float
    end: float
    text: str


class SpeechEncoder(MediaEncoder, Protocol):
    """An audio encoder of a recognizer.

    The metadata of an item contains ``windows``, a list of ``AudioWindow``. They follow each other without gaps.
    """


class SpeechDecoder(Decoder, Protocol):
    """The text decoder of a recognizer. Its prompt is a few tokens, and its layers attend to the encoder's rows.

    The rows of its inputs are the tokens themselves, and its hidden rows are logits. So the model's own ``forward``
    computes everything.
    """

    pairs: bool  # whether each layer attends to earlier tokens and to an encoder's rows
    tokenizer: Any  # a fast one of ``transformers``
    joint: str  # text between two windows
    detects: bool  # whether ``RecognitionOptions.language`` may be None, and is then detected
    start_token: int  # the token that text follows, perhaps after tokens of options
    no_speech: int | None  # the token of a window without speech, whose probability is reported

    def require_options(self, options: RecognitionOptions) -> None:
        """Raise ``BadRequest`` that names an option which the model lacks."""

    def language_name(self, options: RecognitionOptions, token: int | None = None) -> str:
        """Return the English name of the language; "" if it is unknown.

        It is that of ``options``, or of its ``token``.
        """

    def detection_prompt(self) -> tuple[Sequence[int], LogitRule]:
        """Return the prompt and the rule of the detection of a language.

        A token of a language follows the prompt, and the rule allows only these tokens.
        """

    def window_prompt(self, options: RecognitionOptions, first: bool, language: int | None = None) -> Sequence[int]:
        """Return the tokens before the text of a window. ``language`` is a detected token."""

    def logit_rule(self, options: RecognitionOptions, begin: int) -> LogitRule | None:
        """Return the rule for tokens after a prompt of ``begin`` tokens.

        It is that of the library's ``generate``.
        """

    def start(self, ids: Sequence[int], rows: Tensor) -> PrefillInputs:
        """Return the inputs of a window: the prompt ``ids``, and ``rows`` [R, H] of the encoder."""

    def align_words(
        self, prompt: Sequence[int], ids: Sequence[int], rows: Tensor, seconds: float, language: str
    ) -> list[TimedWord]:
        """Return the words of a window of ``seconds``.

        Attention to its ``rows`` [R, H] aligns them with ``ids``, which follow the ``prompt``. Only of models for which
        ``require_options`` accepts ``words``.
        """

    def is_text(self, token: int) -> bool:
        """Return True if ``token`` is a part of the text."""

    def split_segments(self, ids: Sequence[int], seconds: float) -> list[TokenSegment]:
        """Return the segments of a window of ``seconds``, whose tokens are ``ids``. Without text there is none."""

    def decode_ids(self, ids: Sequence[int]) -> str:
        """Decode ids without control tokens."""


def read_windows(meta: Mapping[str, Any]) -> list[AudioWindow]:
    """Return the windows in the metadata of an encoded recording. Raises ``ValueError`` for other metadata."""
    try:
        windows = [AudioWindow(float(begin), float(end), int(rows)) for begin, end, rows in meta["windows"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("the audio was not encoded for a recognizer") from error
    return windows
