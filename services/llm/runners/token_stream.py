"""Incremental decoding by ``tokenizers``, which costs a seventh of decoding a window with every token."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tokenizers.decoders import DecodeStream

from omnibus_models.contract import Reader
from services.llm.runners.detokenize import UNFINISHED, Detokeniser, TokenDecoder

#: Tokens without a character after which a window is decoded instead: the stream would decode all of them with each.
_MAX_PENDING_TOKENS = 16
#: What tokenizers replace, in this order, where they take out the spaces before punctuation.
_CLEANED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
#: Characters without a place to cut that are held back at most.
_MAX_HELD_CHARS = 256


class StreamDetokeniser:
    """A ``Detokeniser`` for fast tokenizers; ``decode`` maps ids to the same text.

    Where their stream does not go on, because bytes never become a character or a decoder changes what it gave out
    before (``step`` raises then, and at every later token), a window is decoded until all of its text was given out.
    """

    def __init__(self, backend: Any, decode: Callable[[Sequence[int]], str], *, skip_special: bool = True) -> None:
        self._decode = decode
        self._backend = backend
        self._skip_special = skip_special
        self._stream = DecodeStream(skip_special_tokens=skip_special)
        self._given: list[int] = []  # the tokens of the text that was given out last
        self._pending: list[int] = []  # tokens behind them
        self._window: Detokeniser | None = None

    def push(self, token: int) -> str:
        """Take one token and return the characters that are complete now."""
        if self._window is not None:
            return self._push_window(self._window, [token])
        self._pending.append(token)
        try:
            text: str | None = self._stream.step(self._backend, token)
        except Exception:  # noqa: BLE001 - it has one for everything, and none of its state can be trusted after it
            return self._open_window()
        if text is None:
            return self._open_window() if len(self._pending) > _MAX_PENDING_TOKENS else ""
        if UNFINISHED in text and len(self._pending) > 1:
            return self._open_window()  # there may be a character among these bytes
        self._given = [*self._given, *self._pending][-_MAX_PENDING_TOKENS:] if text.isspace() else self._pending
        self._pending = []
        return text

    def flush(self) -> str:
        """The rest, with replacement characters for bytes that never became a character."""
        text = self._open_window() if self._window is None and self._pending else ""
        return text if self._window is None else text + self._window.flush()

    def _open_window(self) -> str:
        """Go on with a window, and return what it gives out for the pending tokens."""
        self._window = Detokeniser(self._decode, self._given)
        return self._push_window(self._window, self._pending)

    def _push_window(self, window: Detokeniser, tokens: Sequence[int]) -> str:
        """Let ``window`` take ``tokens``, and a new stream what follows, once there is nothing that it holds back."""
        text = "".join([window.push(token) for token in tokens])
        if window.settled:
            self._window, self._pending, self._given = None, [], window.given
            self._stream = DecodeStream(skip_special_tokens=self._skip_special)
            for token in window.given:
                self._stream.step(self._backend, token)
        return text


class CleanedText:
    """A ``TokenDecoder`` for tokenizers that take spaces out of their text: ``detokeniser`` is one that leaves them.

    Text is held back up to the last place that no replacement can span: before a space that follows no apostrophe.
    """

    def __init__(self, detokeniser: TokenDecoder, clean: Callable[[str], str]) -> None:
        self._detokeniser = detokeniser
        self._clean = clean
        self._held = ""

    def push(self, token: int) -> str:
        """Take one token and return the characters that are complete now."""
        self._held += self._detokeniser.push(token)
        cut = len(self._held)
        while (cut := self._held.rfind(" ", 0, cut)) > 0 and self._held[cut - 1] == "'":
            pass
        if cut <= 0 and len(self._held) > _MAX_HELD_CHARS:
            cut = len(self._held) - max(map(len, _CLEANED))
        text, self._held = self._held[: max(cut, 0)], self._held[max(cut, 0) :]
        return self._clean(text)

    def flush(self) -> str:
        """The rest."""
        return self._clean(self._held + self._detokeniser.flush())


def open_detokeniser(reader: Reader, *, skip_special: bool = True) -> TokenDecoder:
    """The cheapest one whose text is that of all tokens; ``skip_special`` leaves special ones out."""
    tokenizer = reader.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    cleans = _cleans_text(tokenizer, backend)
    decode: Callable[[Sequence[int]], str] = reader.decode_ids
    if cleans or not skip_special:
        decode = partial(_decode_tokens, tokenizer, skip_special)
    detokeniser: TokenDecoder
    if backend is None:
        detokeniser = Detokeniser(decode)
    else:
        detokeniser = StreamDetokeniser(backend, decode, skip_special=skip_special)
    return CleanedText(detokeniser, tokenizer.clean_up_tokenization) if cleans else detokeniser


def _decode_tokens(tokenizer: Any, skip_special: bool, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False)
    return text


def _cleans_text(tokenizer: Any, backend: Any) -> bool:
    """Return whether a ``transformers`` tokenizer takes spaces out of its text; one of BPE never does."""
    return bool(getattr(tokenizer, "clean_up_tokenization_spaces", False)) and (
        backend is None or type(backend.model).__name__ != "BPE"
    )
