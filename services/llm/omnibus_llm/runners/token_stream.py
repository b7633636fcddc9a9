"""Incremental decoding by ``tokenizers``, at a seventh of a window's cost.

A window is decoded again with every token.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from tokenizers.decoders import DecodeStream

from omnibus_llm.runners.detokenize import UNFINISHED, Detokeniser, TokenDecoder

#: Tokens without a character after which a window is decoded instead: the stream would decode all of them with each
#: token.
_MAX_PENDING_TOKENS = 16
#: Texts that tokenizers replace, in this order, when they remove the spaces before punctuation.
_CLEANED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
#: Most characters without a place to cut that are held back.
_MAX_HELD_CHARS = 256


class StreamDetokeniser:
    """A ``Detokeniser`` for fast tokenizers; ``decode`` maps ids to the same text.

    Their stream cannot continue if bytes never become a character, or a decoder changes text that it returned before.
    ``step`` raises then, and at every later token. A window is then decoded until all of its text is returned.
    """

    def __init__(self, backend: Any, decode: Callable[[Sequence[int]], str], *, skip_special: bool = True) -> None:
        self._decode = decode
        self._backend = backend
        self._skip_special = skip_special
        self._stream = DecodeStream(skip_special_tokens=skip_special)
        self._given: list[int] = []  # the tokens of the text that was returned last
        self._pending: list[int] = []  # tokens after them
        self._window: Detokeniser | None = None

    def push(self, token: int) -> str:
        """Take one token and return the characters that are complete now."""
        if self._window is not None:
            return self._push_window(self._window, [token])
        self._pending.append(token)
        try:
            text: str | None = self._stream.step(self._backend, token)
        except Exception:  # noqa: BLE001 - it raises only this type, and its state is invalid afterwards
            return self._open_window()
        if text is None:
            return self._open_window() if len(self._pending) > _MAX_PENDING_TOKENS else ""
        if UNFINISHED in text and len(self._pending) > 1:
            return self._open_window()  # there may be a character among these bytes
        self._given = [*self._given, *self._pending][-_MAX_PENDING_TOKENS:] if text.isspace() else self._pending
        self._pending = []
        return text

    def flush(self) -> str:
        """Return the rest, with replacement characters for bytes without a character."""
        text = self._open_window() if self._window is None and self._pending else ""
        return text if self._window is None else text + self._window.flush()

    def _open_window(self) -> str:
        """Continue with a window; returns its text for the pending tokens."""
        self._window = Detokeniser(self._decode, self._given)
        return self._push_window(self._window, self._pending)

    def _push_window(self, window: Detokeniser, tokens: Sequence[int]) -> str:
        """Push ``tokens`` into ``window``; returns its text.

        A new stream continues when the window holds nothing back.
        """
        text = "".join([window.push(token) for token in tokens])
        if window.settled:
            self._window, self._pending, self._given = None, [], window.given
            self._stream = DecodeStream(skip_special_tokens=self._skip_special)
            for token in window.given:
                self._stream.step(self._backend, token)
        return text


class CleanedText:
    """A ``TokenDecoder`` for tokenizers that remove spaces from their text.

    ``detokeniser`` is one that keeps them. Text is held back up to the last place that no replacement can span: before
    a space that follows no apostrophe.
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
        """Return the rest."""
        return self._clean(self._held + self._detokeniser.flush())


class TextDecoder(Protocol):
    """The part of a ``Reader`` that turns tokens into text."""

    tokenizer: Any

    def decode_ids(self, ids: Sequence[int]) -> str: ...


def open_detokeniser(reader: TextDecoder, *, skip_special: bool = True) -> TokenDecoder:
    """Return the cheapest decoder with the text of all tokens; ``skip_special`` omits special ones."""
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
    """Return True if a ``transformers`` tokenizer removes spaces from its text; one of BPE never does."""
    return bool(getattr(tokenizer, "clean_up_tokenization_spaces", False)) and (
        backend is None or type(backend.model).__name__ != "BPE"
    )
