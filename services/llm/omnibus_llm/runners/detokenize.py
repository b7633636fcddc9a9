"""Conversion of tokens to text that is safe to send: whole characters, and no part of a stop string.

Incremental decoding by ``tokenizers``, at a seventh of a window's cost.

A window is decoded again with every token.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tokenizers.decoders import DecodeStream

from omnibus_llm.runners.answer_parser import AnswerParser
from omnibus_llm.runners.talker import SpokenTokens

if TYPE_CHECKING:
    from omnibus_llm.engine.sampler import TokenLogprobs


#: The replacement that a decoder writes for bytes that are not (yet) a character.
UNFINISHED = "\ufffd"
#: A character has at most four bytes, so at most this many replacements can stand for an unfinished one.
_MAX_UNFINISHED = 3
#: Most tokens after those already sent that are decoded again with each token.
_MAX_PENDING_TOKENS = 16


class Detokeniser:
    """Text of a growing list of tokens; ``decode`` maps ids to text.

    Every token decodes a short window again. The window starts with tokens whose text was already returned,
    ``given_ids`` at first, because some decoders drop the space before the first token.

    Decoders with byte fallback replace every byte of a run that contains one stray byte, even of characters already
    returned. Here only bytes that are not part of a character are replaced, one by one as in these decoders.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], given_ids: Sequence[int] = ()) -> None:
        self._decode = decode
        self.given = list(given_ids)
        self._given_text = decode(self.given) if given_ids else ""
        self._pending: list[int] = []
        self._sent = 0  # characters of the text of pending tokens that were returned

    @property
    def settled(self) -> bool:
        """True if the text of all tokens was returned."""
        return not self._pending

    def push(self, token: int) -> str:
        """Take one token and return the characters that are complete now."""
        self._pending.append(token)
        text = self._read(self._pending)
        if not text:
            del self._pending[_MAX_PENDING_TOKENS:]  # skipped tokens have no text in any context
            return ""
        if not text.endswith(UNFINISHED):
            return self._settle(text, self._pending)
        for size in range(1, min(_MAX_UNFINISHED + 2, len(self._pending))):
            tail = self._pending[-size:]
            character = self._decode(tail * 2)[len(self._decode(tail)) :]  # the first one may lack a space
            if character and UNFINISHED not in character:
                return self._settle(self._read(self._pending[:-size]) + character, tail)
        return self._send_complete(text)

    def flush(self) -> str:
        """Return the rest, with replacement characters for bytes without a character."""
        return self._read(self._pending)[self._sent :]

    def _read(self, tokens: Sequence[int]) -> str:
        """Return the text of ``tokens`` after the given ones."""
        whole = self._decode([*self.given, *tokens])
        # In blank text a replacement cannot be detected.
        if whole.startswith(self._given_text) and (self._given_text.strip() or UNFINISHED not in whole):
            return whole[len(self._given_text) :]
        return self._decode(tokens)  # a stray byte has changed the text of the bytes before it

    def _settle(self, text: str, tokens: Sequence[int]) -> str:
        """Return ``text``, which ends with that of ``tokens``, and continue after them."""
        ready = text[self._sent :]
        given_text = self._decode(tokens)
        if not given_text.strip():  # a decoder may drop any space at the start
            tokens = [*self.given, *tokens][-_MAX_PENDING_TOKENS:]
            given_text = self._decode(tokens)
        self.given, self._given_text = list(tokens), given_text
        self._pending, self._sent = [], 0
        return ready

    def _send_complete(self, text: str) -> str:
        """Return the part of ``text`` that no further byte can change."""
        unfinished_chars = min(len(text) - len(text.rstrip(UNFINISHED)), _MAX_UNFINISHED)
        ready = text[self._sent : len(text) - unfinished_chars]
        self._sent += len(ready)
        if len(self._pending) <= _MAX_PENDING_TOKENS:
            return ready
        for size in range(_MAX_PENDING_TOKENS // 2, _MAX_PENDING_TOKENS):
            rest = self._read(self._pending[-size:])
            if rest.endswith(text[self._sent :]):
                self._sent += len(rest) - len(text)
                self._pending = self._pending[-size:]
                return ready
        return ready + self._settle(text, self._pending)


class StopGuard:
    """Holds back text that may become a stop string."""

    def __init__(self, stops: Sequence[str], *, includes: bool = False) -> None:
        self._stops = tuple(stops)
        self._includes = includes  # True to send the stop string as well
        self.held = ""
        self.hit = False

    def push(self, text: str) -> str:
        """Take text and return the part that may be sent. After a hit nothing more is returned."""
        if self.hit:
            return ""
        text = self.held + text
        hits = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if hits:
            self.hit, self.held = True, ""
            at, stop = min(hits)
            return text[: at + len(stop)] if self._includes else text[:at]
        keep = max((_overlap_length(text, stop) for stop in self._stops), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Return the text that was held back without becoming a stop string."""
        text, self.held = self.held, ""
        return text


class StopRule(NamedTuple):
    """End of an answer's text: a stop string after the first ``min_tokens`` tokens.

    With ``includes``, it and the token that ends an answer are part of the text.
    """

    strings: Sequence[str] = ()
    min_tokens: int = 0
    includes: bool = False


class TokenDecoder(Protocol):
    """Decodes a growing list of tokens."""

    def push(self, token: int) -> str: ...

    def flush(self) -> str: ...


class Reply:
    """The text of one answer, in chunks.

    A ``parser`` finds reasoning and tool calls in it, also by ``special`` tokens. ``decode`` maps ids to text, and
    ``detokeniser`` does the same token by token. The answer ends after ``limit`` tokens; with 0 its engine ends it.
    ``speech`` finds the tokens to speak, if a talker follows.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stops: StopRule | Sequence[str],
        parser: AnswerParser | None = None,
        special: Mapping[int, str] = MappingProxyType({}),
        detokeniser: TokenDecoder | None = None,
        *,
        limit: int = 0,
        speech: SpokenTokens | None = None,
    ) -> None:
        self._decode = decode
        self._detokeniser = detokeniser or Detokeniser(decode)
        self._rule = stops if isinstance(stops, StopRule) else StopRule(stops)
        self._guard = StopGuard(self._rule.strings, includes=self._rule.includes)
        self._logprobs: list[
            list[object]
        ] = []  # of each token: its text, its logprob, and those of the likeliest tokens
        self._logprobs_at = 0  # number of the first of them
        self._parser = parser
        self._special = special
        self._text = ""
        self._reasoning = self._calls = ""
        self._ids: list[int] = []
        self._limit = limit
        self.tokens = 0
        self.speech = speech
        self.thought = 0  # tokens of reasoning
        self.finish: str | None = None

    def add(self, token: int, finish: str | None) -> None:
        """Take one token; ``finish`` is the engine's reason to end with it, if any."""
        self._ids.append(token)
        self.tokens += 1
        if finish is None and self.tokens == self._limit:  # the engine may continue, for the talker
            finish = "length"
        # The token that ends an answer is not part of it.
        token_text = "" if finish == "stop" and not self._rule.includes else self._detokeniser.push(token)
        if token in self._special:
            token_text += self._special[token]
        if finish is not None:
            token_text += self._detokeniser.flush()
        text = self._guard.push(token_text) if self.tokens > self._rule.min_tokens else token_text
        if self._guard.hit:
            self.finish = "stop"
        elif finish is not None:
            text += self._guard.flush()
            self.finish = finish
        answer_text = text if self._parser is None else self._parse(self._parser, text)
        self._text += answer_text
        if self.speech is not None:
            self._follow(self.speech, token, token_text, answer_text)

    def _follow(self, speech: SpokenTokens, token: int, token_text: str, answer_text: str) -> None:
        """Pass ``token`` to ``speech``.

        The token has ``token_text`` text, of which the transcript has ``answer_text``.
        """
        speech.add_token(token, token_text)
        speech.add_text(answer_text)
        if self.thought and not answer_text:
            speech.add_reasoning()
        if self.finish is not None:
            speech.close(self.finish == "stop" and not self._guard.hit)

    def _parse(self, parser: AnswerParser, text: str) -> str:
        """Return more of the transcript, and record the other parts."""
        answer_text = ""
        for parsed_answer in (parser.push(text), *((parser.close(),) if self.finish is not None else ())):
            answer_text += parsed_answer.text
            self._reasoning += parsed_answer.reasoning
            self._calls += parsed_answer.calls
        self.thought += parser.thinking
        return answer_text

    def add_logprobs(self, token: int, finish: str | None, logprobs: "TokenLogprobs") -> None:
        """Take the last token's probabilities, unless it ends the answer."""
        if finish == "stop" or self._guard.hit:
            return
        if not self._logprobs:
            self._logprobs_at = self.tokens - 1
        best = [[self._spell(id), value] for id, value in zip(logprobs.ids, logprobs.values, strict=True)]
        self._logprobs.append([self._spell(token), logprobs.chosen, best])

    def _spell(self, token: int) -> str:
        return self._special.get(token) or self._decode([token])

    def next_chunk(self) -> dict[str, object] | None:
        """Return the next chunk to send, or None without new text.

        The last chunk has all remaining ids.
        """
        if not (self._text or self._reasoning or self._calls or self._logprobs) and (
            self.finish is None or not self._ids
        ):
            return None
        chunk: dict[str, object] = {"text": self._text, "ids": self._ids}
        if self._reasoning:
            chunk["reasoning"] = self._reasoning
        if self._calls:
            chunk["calls"] = self._calls
        if self._logprobs:
            chunk["logprobs"] = {"at": self._logprobs_at, "tokens": self._logprobs}
            self._logprobs = []
        self._text = self._reasoning = self._calls = ""
        self._ids = []
        return chunk

    def usage(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return numbers of tokens by kind; ``counts`` are those of the prompt."""
        thought = {"reasoning_tokens": self.thought} if self.thought else {}
        return {**counts, "completion_tokens": self.tokens, **thought}


def _overlap_length(text: str, stop: str) -> int:
    """Return the length of the longest proper overlap.

    That is the longest end of ``text`` that ``stop`` starts with, but not all of ``stop``.
    """
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)


#: Tokens without a character after which a window is decoded instead: the stream would decode all of them with each
#: token.

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
