"""Bounds on the cost of tokenising: texts that cannot fit a context are rejected early.

A tokeniser takes about a second and 150 MB for each megabyte, and returns the number of tokens only at the end. So
bytes are first compared with the most that a context of tokens can represent. The rest is counted piece by piece until
there are too many tokens.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from omnibus import errors

#: Characters that are counted at a time: at most 0.1 s of work.
_PIECE_CHARACTERS = 1 << 15
#: Bytes of a text that may become one before it is cut into tokens: composed characters are shorter than their parts.
_MAX_SHRINK = 4


class Lengths:
    """Lengths of texts in tokens of ``tokenizer``, estimated early."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._longest = max(len(token.encode(errors="replace")) for token in tokenizer.get_vocab())

    def require_context(self, texts: Sequence[str], context: int, param: str) -> None:
        """Raise ``ContextTooLong`` if ``texts`` together certainly have more than ``context`` tokens.

        It costs no more than tokenising about as much text as fits.
        """
        if sum(map(len, texts)) <= max(context, _PIECE_CHARACTERS):
            return
        if _count_bytes(texts) > context * self._longest * _MAX_SHRINK:
            raise _too_long(context, param)
        tokens = 0
        for piece in _text_pieces(texts):
            tokens += len(self._tokenizer(piece, add_special_tokens=False)["input_ids"])
            # Two texts may share a token, or a cut has split one into as many tokens as it has bytes.
            tokens -= min(tokens, self._longest)
            if tokens > context:
                raise _too_long(context, param)


def texts_of(messages: Iterable[Any]) -> list[str]:
    """Return all texts of a chat, well-formed or not."""
    result: list[str] = []
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        parts = content if isinstance(content, list | tuple) else [{"text": content}]
        texts = (part.get("text") for part in parts if isinstance(part, Mapping))
        result += [text for text in texts if isinstance(text, str)]
    return result


def _text_pieces(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for start in range(0, len(text), _PIECE_CHARACTERS):
            yield text[start : start + _PIECE_CHARACTERS]


def _count_bytes(texts: Iterable[str]) -> int:
    return sum(len(piece.encode(errors="replace")) for piece in _text_pieces(texts))


def _too_long(context: int, param: str) -> errors.ContextTooLong:
    message = f"the text has more than the {context} tokens that fit; send a shorter one"
    return errors.ContextTooLong(message, param=param)
