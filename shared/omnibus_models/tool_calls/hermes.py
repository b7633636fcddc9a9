"""Calls of Hermes, Qwen2.5 and Qwen3: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""

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
    hold_marker,
    list_tools,
    marker_rule,
)

BEGIN, END = "<tool_call>", "</tool_call>"


class HermesParser:
    """Calls between tags, each one JSON object. Anything else between tags is text."""

    def __init__(self) -> None:
        self._held = ""
        self._call: CallObject | None = None
        self._called = False
        self._given = False  # a call was returned
        self.calling = False

    def push(self, text: str) -> Parsed:
        output, calls = "", ""
        self._held += text
        while self._held:
            if self._call is None:
                more, again = self._read_text()
                output += more
            else:
                more, leftover, again = self._read_call(self._call)
                calls, output = calls + more, output + leftover
            if not again:
                break
        return Parsed(output, calls)

    def _read_text(self) -> tuple[str, bool]:
        before, marker, rest = self._held.partition(BEGIN)
        if marker:
            self._call, self._held, self._called, self.calling = CallObject(), rest, True, True
            return before.rstrip(), True
        overlap = hold_marker(self._held, (BEGIN,))
        output, self._held = self._held[: len(self._held) - overlap], self._held[len(self._held) - overlap :]
        self.calling = self._called or bool(self._held.strip())
        return output, False

    def _read_call(self, call: CallObject) -> tuple[str, str, bool]:
        if call.done:
            _, end, rest = self._held.partition(END)
            if end:
                self._call, self._held = None, rest.lstrip()
            return "", "", bool(end)
        more, rest = call.push(self._held)
        self._given |= bool(more)
        self._held = rest
        if call.wrong:
            self._call, self._held = None, ""
            leftover = f"{BEGIN}{call.raw}"
            following = self.push(rest)  # it may still contain a call
            return more + following.calls, leftover + following.text, False
        return more, "", call.done

    def close(self) -> Parsed:
        leftover = "" if self._call is None or self._call.known or self._given else f"{BEGIN}{self._call.raw}"
        output = leftover if self._call is not None else self._held
        self._held, self._call = "", None
        return Parsed(output)


class HermesFormat:
    special: Sequence[str] = (BEGIN, END)

    def open_parser(self) -> HermesParser:
        return HermesParser()

    def grammar(self, tools: Sequence[Tool], parallel: bool, special: SpecialId) -> str:
        more = '("\\n" call)*' if parallel else ""
        return (
            f"calls: call {more}\n"
            f'call: {marker_rule(BEGIN, special)} "\\n" body "\\n" {marker_rule(END, special)}\n'
            f"body: {schema_rule(call_schema(tools))}\n"
        )

    def describe_tools(self, tools: Sequence[Tool]) -> str:
        shape = f'{BEGIN}\n{{"name": <function-name>, "arguments": <args-json-object>}}\n{END}'
        return (
            "# Tools\n\nYou may call one or more functions to answer the user. Their signatures are within "
            f"<tools></tools> tags:\n<tools>\n{list_tools(tools)}\n</tools>\n\nFor each call write a JSON object with "
            f"the function's name and its arguments within {BEGIN}{END} tags:\n{shape}"
        )

    def write_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        return f"{BEGIN}\n{body}\n{END}"

    def write_result(self, name: str, content: str) -> str:
        return f"<tool_response>\n{content}\n</tool_response>"


FORMAT = HermesFormat()
