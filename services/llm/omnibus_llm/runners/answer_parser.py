"""Parser of an answer's text into content, reasoning and tool calls.

The grammar of an answer, from the requirements of its request.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from omnibus.errors import BadRequest
from omnibus.structured.grammar import find_error, first_line
from omnibus.structured.rewrites import SchemaError
from omnibus.structured.shapes import GRAMMAR, shape_rule, whole_grammar
from omnibus_llm.engine.params import TextGenerationParams
from omnibus_models.contract import Reader
from omnibus_models.tool_calls import CallParser
from omnibus_models.tool_calls.base import hold_marker

if TYPE_CHECKING:
    from omnibus_llm.engine.params import TextGenerationParams
    from omnibus_models.contract import Reader


#: Marks around reasoning.
THINK, THINK_END = "<think>", "</think>"


class ParsedAnswer(NamedTuple):
    """More of an answer; ``calls`` has the format of ``omnibus.structured.calls``."""

    text: str = ""
    reasoning: str = ""
    calls: str = ""


class AnswerParser:
    """Parts of one answer, as they arrive.

    With ``thinks`` the answer may start with reasoning. With ``thinking`` its template has already started that.
    ``calls`` parses the rest; None if all of it is text.
    """

    def __init__(self, thinks: bool, thinking: bool, calls: CallParser | None) -> None:
        self._begin = thinks and not thinking  # True if reasoning may still start
        self._thinking = thinks and thinking
        self._settled = not thinks  # True if the text has started
        self._thought = False  # True if any reasoning has arrived
        self._calls = calls
        self._held = ""

    @property
    def thinking(self) -> bool:
        """True while the answer is reasoning."""
        return self._thinking

    @property
    def calling(self) -> bool:
        """True once a call may have started: no later token is spoken."""
        return self._calls is not None and self._calls.calling

    def push(self, text: str) -> ParsedAnswer:
        """Take more of the answer; returns the parts known now."""
        reasoning = ""
        if not self._settled:
            reasoning, text = self._read_reasoning(text)
        answer_text, calls = (text, "") if self._calls is None or not text else self._calls.push(text)
        return ParsedAnswer(answer_text, reasoning, calls)

    def close(self) -> ParsedAnswer:
        """End the answer; returns the rest."""
        held_text, self._held = self._held, ""
        if self._thinking:
            return ParsedAnswer("", held_text.rstrip(), "")
        before = self.push(held_text) if held_text and self._settle() else ParsedAnswer()
        answer_text, calls = ("", "") if self._calls is None else self._calls.close()
        return ParsedAnswer(before.text + answer_text, before.reasoning, before.calls + calls)

    def _settle(self) -> bool:
        self._settled = True
        return True

    def _read_reasoning(self, text: str) -> tuple[str, str]:
        """Return more reasoning, and the part of ``text`` after it."""
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
        if not self._thought:  # white space before reasoning
            self._held = self._held.lstrip()
        self._thought = self._thought or bool(self._held)
        before, end, rest = self._held.partition(THINK_END)
        if end:
            self._thinking, self._held = False, ""
            return before.rstrip(), self._begin_text(rest)
        kept_chars = hold_marker(self._held, (THINK_END,))
        reasoning_text, self._held = (
            self._held[: len(self._held) - kept_chars],
            self._held[len(self._held) - kept_chars :],
        )
        return reasoning_text, ""

    def _begin_text(self, text: str) -> str:
        rest = text.lstrip()
        self._settled, self._held = bool(rest), ""
        return rest


def open_parser(reader: "Reader", params: "TextGenerationParams", thinking: bool | None) -> AnswerParser | None:
    """Return the parser of an answer to ``params``; None if all of it is text.

    ``thinking``: see ``TokenizedPrompt``.
    """
    calls = reader.tool_format.open_parser() if params.tools else None
    thinks = reader.thinks and thinking is not None
    return AnswerParser(thinks, bool(thinking), calls) if calls is not None or thinks else None


def special_tokens(reader: "Reader", params: "TextGenerationParams") -> dict[int, str]:
    """Return special tokens that the parser of an answer needs.

    They are not part of the answer's text.
    """
    special_texts = [
        *(reader.tool_format.special if params.tools else ()),
        *((THINK, THINK_END) if reader.thinks else ()),
    ]
    numbers = {reader.special_id(text): text for text in special_texts}
    return {number: text for number, text in numbers.items() if number is not None}


def answer_grammar(reader: Reader, params: TextGenerationParams) -> str | None:
    """Return the Lark grammar of answers to ``params``; None if any text is valid. Raises ``BadRequest``."""
    try:
        return _write_grammar(reader, params)
    except SchemaError as error:
        raise BadRequest(f"the schema cannot be used: {error}", param="response_format") from None


def _write_grammar(reader: Reader, params: TextGenerationParams) -> str | None:
    rules = []
    if params.structured_outputs is not None:
        if GRAMMAR in params.structured_outputs:
            return _read_grammar(params)
        rules.append(("json", f"json: {shape_rule(params.structured_outputs)}\n"))
    if params.tools and (params.tool_choice == "required" or rules):
        if params.tool_choice == "required":
            rules.clear()
        tools = [each for each in params.tools if not params.allowed_tools or _name(each) in params.allowed_tools]
        rules.append(("calls", reader.tool_format.grammar(tools, params.parallel_tool_calls, reader.special_id)))
    if not rules:
        return None
    return f"start: {' | '.join(name for name, _ in rules)}\n{''.join(rule for _, rule in rules)}"


def _read_grammar(params: TextGenerationParams) -> str:
    if params.tools and params.tool_choice == "required":
        raise BadRequest("required tool calls have the grammar of the tools; remove tools", param="structured_outputs")
    try:
        return whole_grammar(params.structured_outputs or {})
    except ValueError as error:
        raise BadRequest(f"the grammar cannot be read: {error}", param="structured_outputs") from None


@lru_cache(maxsize=256)
def check_grammar(grammar: str) -> None:
    """Raise ``BadRequest`` for an invalid ``grammar``. This takes time: never call it on an event loop."""
    error = find_error(grammar)
    if error:
        raise BadRequest(f"the schema cannot be used: {first_line(error)}", param="response_format")


def _name(tool: dict[str, object]) -> object:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else None
