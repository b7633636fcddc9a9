"""Calls of Llama 3: the whole answer is ``{"name": …, "parameters": {…}}``, several separated by ``;``."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from omnibus.structured.grammar import schema_rule
from omnibus_models.tool_calls.base import (
    CallObject,
    Parsed,
    SpecialId,
    Tool,
    call_schema,
    list_tools,
)

TAG = "<|python_tag|>"


class Llama3Parser:
    """Parses an answer that starts with a brace or ``openers`` as calls.

    Any other answer is text.
    """

    def __init__(self, openers: Sequence[str] = (TAG,)) -> None:
        self._openers = openers
        self._held = ""
        self._opened = ""  # the opener that was found
        self._call: CallObject | None = None
        self._begun = False  # a call was returned
        self._text = False  # it is text from here on

    @property
    def calling(self) -> bool:
        """See ``CallParser``."""
        return not self._text

    def push(self, text: str) -> Parsed:
        if self._text:
            return Parsed(text)
        self._held += text
        output, calls = "", ""
        while self._held and not self._text:
            if self._call is None and not self._find_call():
                break
            more, leftover = self._read_call() if self._call is not None else ("", self._give_up())
            calls, output = calls + more, output + leftover
        return Parsed(output, calls)

    def _find_call(self) -> bool:
        """Look for the next call; return False if it is not decided yet."""
        rest = self._held.lstrip(" \n\r\t;" if self._begun else " \n\r\t")
        if not rest:
            return False
        for opener in self._openers:
            if rest.startswith(opener):
                self._opened += self._held[: len(self._held) - len(rest)] + opener
                self._held = rest[len(opener) :]
                return self._find_call()
            if opener.startswith(rest):
                return False
        if rest.startswith("{"):
            self._call, self._held = CallObject(), rest
        return True

    def _read_call(self) -> tuple[str, str]:
        call = self._call
        assert call is not None  # noqa: S101 - for the type checker
        more, self._held = call.push(self._held)
        if call.wrong:
            return "", self._give_up(call.raw)
        self._begun |= call.known
        if call.done:
            self._call, self._opened = None, ""
        return more, ""

    def _give_up(self, raw: str = "") -> str:
        """Treat the call as text; after another call, drop closing marks."""
        output, self._opened = self._opened + raw + self._held, ""
        self._held, self._call, self._text = "", None, True
        return "" if self._begun and not output.strip("`\n ") else output

    def close(self) -> Parsed:
        if self._call is not None and self._call.known:
            return Parsed()
        raw = "" if self._call is None else self._call.raw
        output, self._opened, self._held, self._call = self._opened + raw + self._held, "", "", None
        return Parsed("" if self._begun and not output.strip("; \n`") else output)


class Llama3Format:
    special: Sequence[str] = (TAG,)

    def open_parser(self) -> Llama3Parser:
        return Llama3Parser()

    def grammar(self, tools: Sequence[Tool], parallel: bool, special: SpecialId) -> str:
        more = '("; " call)*' if parallel else ""
        return f"calls: call {more}\ncall: {schema_rule(call_schema(tools, 'parameters'))}\n"

    def describe_tools(self, tools: Sequence[Tool]) -> str:
        return (
            "You have access to the following functions. To call one, answer with nothing but JSON of the form "
            '{"name": function name, "parameters": dictionary of argument names and their values}.\n\n'
            f"{list_tools(tools)}"
        )

    def write_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False)

    def write_result(self, name: str, content: str) -> str:
        return json.dumps({"name": name, "output": content}, ensure_ascii=False)


FORMAT = Llama3Format()
