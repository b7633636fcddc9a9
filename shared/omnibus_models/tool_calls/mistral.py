"""Calls of Mistral: ``[TOOL_CALLS]`` and a JSON list of them, or each as ``name[ARGS]{…}``."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from omnibus.structured.calls import call_head, clean_text
from omnibus.structured.grammar import schema_rule
from omnibus_models.tool_calls.base import (
    CallObject,
    Parsed,
    SpecialId,
    Tool,
    call_schema,
    hold_marker,
    list_tools,
    marker_rule,
)

MARK, ARGS = "[TOOL_CALLS]", "[ARGS]"


class MistralParser:
    """Text, and after a mark only calls."""

    def __init__(self) -> None:
        self._held = ""
        self._marked = False
        self._call: CallObject | _NamedCall | None = None
        self._given = False
        self.calling = False

    def push(self, text: str) -> Parsed:
        self._held += text
        output = ""
        if not self._marked:
            before, mark, rest = self._held.partition(MARK)
            if not mark:
                overlap = hold_marker(self._held, (MARK,))
                output, self._held = self._held[: len(self._held) - overlap], self._held[len(self._held) - overlap :]
                self.calling = bool(self._held.strip())
                return Parsed(output)
            output, self._held, self._marked, self.calling = before.rstrip(), rest, True, True
        return Parsed(output, self._read_calls())

    def _read_calls(self) -> str:
        calls = ""
        while True:
            if self._call is None:
                self._held = self._held.lstrip(" \n,]")
                if MARK.startswith(self._held):  # or nothing
                    return calls
                self._held = self._held.removeprefix(MARK).lstrip(" \n[,]")
                if not self._held:
                    return calls
                self._call = CallObject() if self._held[0] == "{" else _NamedCall()
            more, self._held = self._call.push(self._held)
            calls += more
            self._given |= bool(more)
            if not self._call.done:
                return calls
            self._call = None

    def close(self) -> Parsed:
        raw = "" if self._call is None else self._call.raw
        output = "" if self._given else (f"{MARK}{raw}{self._held}" if self._marked else self._held)
        self._held, self._call = "", None
        return Parsed(output)


class _NamedCall:
    """A call that is a name, followed by an object of arguments."""

    def __init__(self) -> None:
        self.raw = ""
        self.done = False
        self._named = False
        self._depth = 0
        self._quoted = self._escaped = False

    def push(self, text: str) -> tuple[str, str]:
        """See ``CallObject.push``."""
        output = ""
        if not self._named:
            name, brace, text = (self.raw + text).partition("{")
            self.raw = name + brace
            if not brace:
                return "", ""
            self._named, self._depth = True, 1
            output = call_head(name.removesuffix(ARGS).strip()) + brace
        for index, letter in enumerate(text):
            self._step(letter)
            if not self._depth:
                self.done = True
                return output + clean_text(text[: index + 1]), text[index + 1 :]
        self.raw += text
        return output + clean_text(text), ""

    def _step(self, letter: str) -> None:
        if self._quoted:
            self._quoted = self._escaped or letter != '"'
            self._escaped = letter == "\\" and not self._escaped
            return
        self._quoted = letter == '"'
        self._depth += (letter in "{[") - (letter in "}]")


class MistralFormat:
    special: Sequence[str] = (MARK, ARGS)

    def open_parser(self) -> MistralParser:
        return MistralParser()

    def grammar(self, tools: Sequence[Tool], parallel: bool, special: SpecialId) -> str:
        more = '(", " call)*' if parallel else ""
        return f'calls: {marker_rule(MARK, special)} "[" call {more} "]"\ncall: {schema_rule(call_schema(tools))}\n'

    def describe_tools(self, tools: Sequence[Tool]) -> str:
        return (
            f"You may call these functions:\n{list_tools(tools)}\nTo do so write {MARK} and a JSON list of objects "
            "with the name of a function and its arguments."
        )

    def write_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"{MARK}{json.dumps([{'name': name, 'arguments': arguments}], ensure_ascii=False)}"

    def write_result(self, name: str, content: str) -> str:
        return f"[TOOL_RESULTS]{json.dumps({'content': content}, ensure_ascii=False)}[/TOOL_RESULTS]"


FORMAT = MistralFormat()
