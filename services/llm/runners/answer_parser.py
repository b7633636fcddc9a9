"""From the text of an answer to what it says, what it has thought before, and the calls of tools in it."""

from typing import TYPE_CHECKING, NamedTuple

from omnibus_models.tool_calls import CallParser
from omnibus_models.tool_calls.base import hold_marker

if TYPE_CHECKING:  # simulated models come without torch
    from omnibus_models.contract import Reader
    from services.llm.engine.params import TextGenerationParams

#: What stands around reasoning.
THINK, THINK_END = "<think>", "</think>"


class ParsedAnswer(NamedTuple):
    """More of an answer; ``calls`` is as ``omnibus.structured.calls`` has it."""

    text: str = ""
    reasoning: str = ""
    calls: str = ""


class AnswerParser:
    """Parts of one answer, as they come.

    ``thinks``: it may begin with reasoning; with ``thinking`` its template has begun that. ``calls`` reads what
    follows; None: that is text.
    """

    def __init__(self, thinks: bool, thinking: bool, calls: CallParser | None) -> None:
        self._begin = thinks and not thinking  # whether reasoning may still begin
        self._thinking = thinks and thinking
        self._settled = not thinks  # whether the text has begun
        self._thought = False  # whether any of it has come
        self._calls = calls
        self._held = ""

    @property
    def thinking(self) -> bool:
        """True while the answer is reasoning."""
        return self._thinking

    @property
    def calling(self) -> bool:
        """True once a call may have begun: no token from here on is spoken."""
        return self._calls is not None and self._calls.calling

    def push(self, text: str) -> ParsedAnswer:
        """Take more of the answer and return what is known now."""
        reasoning = ""
        if not self._settled:
            reasoning, text = self._read_reasoning(text)
        said, calls = (text, "") if self._calls is None or not text else self._calls.push(text)
        return ParsedAnswer(said, reasoning, calls)

    def close(self) -> ParsedAnswer:
        """The answer is whole: return the rest."""
        held, self._held = self._held, ""
        if self._thinking:
            return ParsedAnswer("", held.rstrip(), "")
        before = self.push(held) if held and self._settle() else ParsedAnswer()
        said, calls = ("", "") if self._calls is None else self._calls.close()
        return ParsedAnswer(before.text + said, before.reasoning, before.calls + calls)

    def _settle(self) -> bool:
        self._settled = True
        return True

    def _read_reasoning(self, text: str) -> tuple[str, str]:
        """More reasoning, and what of ``text`` is behind it."""
        self._held += text
        if self._begin:
            rest = self._held.lstrip()
            if rest.startswith(THINK):
                self._begin, self._thinking, self._held = False, True, rest[len(THINK) :]
            elif THINK.startswith(rest):
                return "", ""
            else:
                self._begin, self._settled = False, True
                text, self._held = self._held, ""
                return "", text
        if not self._thinking:  # white space between reasoning and text
            return "", self._begin_text(self._held)
        if not self._thought:  # white space before the first of it
            self._held = self._held.lstrip()
        self._thought = self._thought or bool(self._held)
        before, end, rest = self._held.partition(THINK_END)
        if end:
            self._thinking, self._held = False, ""
            return before.rstrip(), self._begin_text(rest)
        kept = hold_marker(self._held, (THINK_END,))
        said, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return said, ""

    def _begin_text(self, text: str) -> str:
        rest = text.lstrip()
        self._settled, self._held = bool(rest), ""
        return rest


def open_parser(reader: "Reader", params: "TextGenerationParams", thinking: bool | None) -> AnswerParser | None:
    """The parser of an answer to ``params``; None where all of it is text. ``thinking``: see ``TokenizedPrompt``."""
    calls = reader.tool_format.open_parser() if params.tools else None
    thinks = reader.thinks and thinking is not None
    return AnswerParser(thinks, bool(thinking), calls) if calls is not None or thinks else None


def special_tokens(reader: "Reader", params: "TextGenerationParams") -> dict[int, str]:
    """Special tokens that an answer to ``params`` is parsed by, though they are no text."""
    named = [*(reader.tool_format.special if params.tools else ()), *((THINK, THINK_END) if reader.thinks else ())]
    numbers = {reader.special_id(text): text for text in named}
    return {number: text for number, text in numbers.items() if number is not None}
