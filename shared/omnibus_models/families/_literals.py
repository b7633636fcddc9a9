"""Control tokens in users' text, tokenised as plain characters.

A tokeniser recognises added tokens anywhere, so a user's ``<|im_end|>`` would equal the chat template's. Each control
token in a text is therefore replaced by a mark of letters and digits before the template is applied. Afterwards, each
mark is replaced by the ids of the token's characters, none of which is a control token.
"""

import re
from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Any

from omnibus import errors

_Ids = list[int]


#: Form of tokens that mark something, and HTML tags, which some vocabularies have for texts (Gemma's).
_MARK = re.compile(r"[<\[{|\uff5c\]].*[>\]})|\uff5c\[]", re.DOTALL)
_TAG = re.compile(r"</?(?:table|caption|t(?:head|body|foot|r|h|d)|h[1-6]|blockquote|strong|em|[bius]|sub|sup|code)>")
_DIGITS = re.compile(r"\d+")


class ControlTokenLiterals:
    """Marks for the control tokens of ``tokenizer``; their ids do not contain control tokens.

    ``names`` are always text. Other added tokens that look like marks, such as ``<tool_call>``, are text as well,
    except in a model's own messages.
    """

    def __init__(self, tokenizer: Any, names: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        always = dict.fromkeys(filter(None, names))
        self._names = sorted({*always, *find_added_marks(tokenizer)}, key=lambda name: (-len(name), name))
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._always = frozenset(always)
        self._forbidden = frozenset(tokenizer.convert_tokens_to_ids(self._names))
        self._mark = f"q{token_hex(8)}x"
        # Hundreds of reserved tokens differ only in their number.
        kinds = dict.fromkeys(_DIGITS.sub(r"\\d+", re.escape(name)) for name in self._names)
        self._found = re.compile("|".join(kinds)) if kinds else None
        self._marks = re.compile(rf"{self._mark}(\d+)q")

    def mark_tokens(self, text: str, *, own: bool = False) -> str:
        """Return ``text`` with each control token replaced by a mark.

        Without any, it returns the same object.
        ``own`` means that a model wrote it.
        """
        if self._found is None or self._found.search(text) is None:
            return text
        return self._found.sub(lambda match: self._stand_in(match[0], own), text)

    def _stand_in(self, name: str, own: bool) -> str:
        is_marked = name in self._always if own else name in self._numbers
        return f"{self._mark}{self._numbers[name]}q" if is_marked else name

    def tokenize(self, text: str, tokenize: Callable[[str], _Ids]) -> _Ids:
        """Return the ids of ``text``, which may contain marks.

        ``tokenize`` returns those of the text before the first mark. Raises ``BadRequest`` for a token that this
        tokeniser cannot write in another way.
        """
        if self._mark not in text:
            return tokenize(text)
        first, *rest = self._marks.split(text)
        ids = list(tokenize(first))
        for number, after in zip(rest[::2], rest[1::2], strict=True):
            ids += self._spell_token(self._names[int(number)])
            ids += self._ids(after)
        return ids

    def _spell_token(self, name: str) -> _Ids:
        ids = [*self._ids(name[:1]), *self._ids(name[1:])]
        if not self._forbidden.isdisjoint(ids):
            raise errors.BadRequest(f"the text holds the control token {name!r}; leave it out", param="messages")
        return ids

    def _ids(self, text: str) -> _Ids:
        ids: _Ids = self._tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        return ids


def find_added_marks(tokenizer: Any) -> list[str]:
    """Return added tokens of ``tokenizer`` that look like marks.

    White space, words and HTML tags are excluded.
    """
    names = (str(token) for token in tokenizer.added_tokens_decoder.values())
    return [name for name in names if len(name) > 2 and _MARK.fullmatch(name) and not _TAG.fullmatch(name)]
