"""Incremental decoding by ``tokenizers``, which costs a seventh of decoding a window with every token."""

from typing import Any

from tokenizers.decoders import DecodeStream

from omnibus_models.contract import Reader
from services.llm.runners.detokenize import Detokeniser

#: Tokens without a character after which a window is decoded instead: the stream would decode all of them with each.
_MAX_PENDING_TOKENS = 16


class StreamDetokeniser:
    """A ``Detokeniser`` for fast tokenizers.

    Where their stream does not go on, because bytes never become a character or a decoder changes what it gave out
    before (``step`` raises then), it goes on with a window.
    """

    def __init__(self, reader: Reader) -> None:
        self._decode = reader.decode_ids
        self._backend = reader.tokenizer.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._given: list[int] = []  # the tokens of the text that was given out last
        self._pending: list[int] = []  # tokens behind them
        self._window: Detokeniser | None = None

    def push(self, token: int) -> str:
        """Take one token and return the characters that are complete now."""
        if self._window is not None:
            return self._window.push(token)
        self._pending.append(token)
        try:
            text: str | None = self._stream.step(self._backend, token)
        except Exception:  # noqa: BLE001 - it has one for everything, and none of its state can be trusted after it
            return self._open_window()
        if text is not None:
            self._given, self._pending = self._pending, []
            return text
        return self._open_window() if len(self._pending) > _MAX_PENDING_TOKENS else ""

    def flush(self) -> str:
        """The rest, with a replacement character for bytes that never became one."""
        if self._window is not None:
            return self._window.flush()
        if not self._pending:
            return ""
        return self._decode([*self._given, *self._pending])[len(self._decode(self._given)) :]

    def _open_window(self) -> str:
        """Go on with a window, and return what it gives out for the pending tokens."""
        self._window = Detokeniser(self._decode, self._given)
        return "".join([self._window.push(token) for token in self._pending])


def open_detokeniser(reader: Reader) -> Detokeniser | StreamDetokeniser:
    """The cheapest one whose text is that of ``reader.decode_ids``."""
    return StreamDetokeniser(reader) if _decodes_unchanged(reader.tokenizer) else Detokeniser(reader.decode_ids)


def _decodes_unchanged(tokenizer: Any) -> bool:
    """True if the text of a ``transformers`` tokenizer is that of the library below it.

    Others have no library below them, or take spaces out of its text.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return False
    cleans = getattr(tokenizer, "clean_up_tokenization_spaces", False)
    return not cleans or type(backend.model).__name__ == "BPE"
