"""Common parts of the formats of tool calls."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from omnibus.structured.calls import call_head, clean_text

#: Function that returns the id of a special token; None if the text is not one of the vocabulary.
SpecialId = Callable[[str], int | None]
#: A tool in the form of chat templates: ``{"type": "function", "function": {name, description, parameters}}``.
Tool = Mapping[str, Any]


class Parsed(NamedTuple):
    """New parts of an answer: more of its ``text`` and ``calls`` (``omnibus.structured``)."""

    text: str = ""
    calls: str = ""


class CallParser(Protocol):
    """Reads one answer in pieces."""

    @property
    def calling(self) -> bool:
        """True once a call, or a possible call, has begun."""

    def push(self, text: str) -> Parsed:
        """Add ``text`` to the answer, and return the new parts."""

    def close(self) -> Parsed:
        """End the answer, and return the rest. A call that was cut off remains one."""


class ToolFormat(Protocol):
    """Format in which models of a family write calls.

    ``special`` are its special tokens, which must be read although text does not show them.
    """

    special: Sequence[str]

    def open_parser(self) -> CallParser:
        """Return a parser for one answer."""

    def grammar(self, tools: Sequence[Tool], parallel: bool, special: SpecialId) -> str:
        """Return the rules of a Lark grammar (``llguidance``) for calls of ``tools``.

        The first rule is ``calls``: one call, or with ``parallel`` several.
        """

    def describe_tools(self, tools: Sequence[Tool]) -> str:
        """Return a system message that lists the tools, if templates do not."""

    def write_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a call in the model's form, if templates lack it."""

    def write_result(self, name: str, content: str) -> str:
        """Return a user's message with a call's result, if templates lack it."""


#: Keywords whose members are named by clients.
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


class CallObject:
    """One call that is a JSON object: a function's ``name`` and its arguments.

    The text of the arguments is passed on as it arrives.
    """

    def __init__(self) -> None:
        self.raw = ""  # all of it
        self.known = False  # the head was returned
        self.done = False
        self.wrong = False  # it is not a call
        self._depth = 0
        self._quoted = self._escaped = False
        self._key: str | None = None
        self._name = ""
        self._buffer = ""  # of a key, or of a value
        self._given = 0  # characters of the arguments that were returned
        self._arguments = ""

    def push(self, text: str) -> tuple[str, str]:
        """Add ``text``; return more of the call, and the rest of ``text`` after it."""
        for index, letter in enumerate(text):
            if self.done or self.wrong:
                return self._take_ready(), text[index:]
            self.raw += letter
            self._step(letter)
        return self._take_ready(), ""

    def _step(self, letter: str) -> None:
        if self._quoted:
            self._buffer += letter
            self._quoted = self._escaped or letter != '"'
            self._escaped = letter == "\\" and not self._escaped
        elif self._depth == 0:
            self.wrong = letter != "{" and not letter.isspace()
            self._depth += letter == "{"
        elif self._depth == 1 and letter in ":,}":
            self._end_token(letter)
        else:
            self._quoted = letter == '"'
            self._depth += (letter in "{[") - (letter in "}]")
            self._buffer += letter
        if self._key in _ARGUMENTS:
            self._arguments = self._buffer

    def _end_token(self, letter: str) -> None:
        token, self._buffer = self._buffer.strip(), ""
        if letter == ":" and self._key is None:
            self._key = str(_loads(token))
            self.wrong = self._key not in _KEYS
            return
        if self._key == "name":
            self._name = str(_loads(token))
            self.wrong = not self._name
        elif self._key in _ARGUMENTS:
            self._arguments = token
            self._end_arguments()
        self._key = None
        self.done = letter == "}"
        self._depth -= self.done

    def _end_arguments(self) -> None:
        if self._arguments.startswith('"'):  # some models write the text of an object
            self._arguments = str(_loads(self._arguments))
        self._key = None

    def _take_ready(self) -> str:
        if not self._name or self.wrong:
            return ""
        head = "" if self.known else call_head(self._name)
        self.known = True
        arguments = self._arguments.strip()
        if arguments.startswith('"') and not self.done:
            return head
        if self.done and not arguments:
            arguments = "{}"
        fresh, self._given = arguments[self._given :], max(self._given, len(arguments))
        return head + clean_text(fresh)


_ARGUMENTS = ("arguments", "parameters")
_KEYS = ("name", "type", "id", *_ARGUMENTS)


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return ""


def hold_marker(text: str, markers: Sequence[str]) -> int:
    """Return the length of a possible marker's beginning that ends ``text``.

    It includes the white space before it.
    """
    overlap = max((_overlap_length(text, marker) for marker in markers), default=0)
    head = text[: len(text) - overlap]
    return overlap + len(head) - len(head.rstrip())


def _overlap_length(text: str, marker: str) -> int:
    longest = min(len(text), len(marker) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(marker[:size])), 0)


def call_schema(tools: Sequence[Tool], arguments: str = "arguments") -> dict[str, Any]:
    """Return the JSON schema of a call of one of ``tools``: an object of its name and ``arguments``."""
    kinds = [
        {
            "type": "object",
            "properties": {
                "name": {"const": name},
                arguments: _move_references(
                    schema, f"#/anyOf/{index}/properties/{arguments}" if len(tools) > 1 else f"#/properties/{arguments}"
                ),
            },
            "required": ["name", arguments],
            "additionalProperties": False,
        }
        for index, (name, schema) in enumerate(map(tool_schema, tools))
    ]
    return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


def tool_schema(tool: Tool) -> tuple[str, dict[str, Any]]:
    """Return name and arguments' schema of ``tool``, by default any object."""
    function = tool["function"]
    schema = {name: each for name, each in (function.get("parameters") or {}).items() if name not in ("$id", "$schema")}
    return str(function["name"]), {"type": "object", **schema} if schema else {"type": "object", "properties": {}}


def _move_references(value: Any, place: str, within: str = "") -> Any:
    """Move a schema to ``place`` of another one, with its references."""
    if isinstance(value, list):
        return [_move_references(each, place) for each in value]
    if not isinstance(value, Mapping):
        return value
    result = {}
    for name, each in value.items():
        if name == "$ref" and isinstance(each, str) and within not in _NAMED_SCHEMAS and each.startswith("#"):
            result[name] = f"{place}{each[1:]}" if each[1:2] in ("", "/") else each
        elif name in ("const", "enum", "default", "examples") and within not in _NAMED_SCHEMAS:
            result[name] = each
        else:
            result[name] = _move_references(each, place, "" if within in _NAMED_SCHEMAS else name)
    return result


def marker_rule(text: str, special: SpecialId) -> str:
    """Return ``text`` for a Lark grammar, as a special token if possible."""
    number = special(text)
    return json.dumps(text) if number is None else f"<[{number}]>"


def list_tools(tools: Sequence[Tool]) -> str:
    """Return ``tools`` as JSON, one a line."""
    return "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
