"""Grammars of what an answer may be: JSON schemas as ``llguidance`` takes them, and bounds on what they may cost."""

from collections.abc import Mapping
from typing import Any

import msgspec

#: Bytes of the JSON of one schema.
MAX_SCHEMA_BYTES = 128 * 1024
#: Symbols of a grammar, and work of its lexer: what needs more is refused while it is compiled.
MAX_GRAMMAR_SYMBOLS, MAX_LEXER_FUEL = 50_000, 500_000
#: Answers are written as most models write JSON by themselves: a space behind commas and colons, and none elsewhere,
#: for a mask would let a model go on with white space for ever.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "coerce_one_of": True}


def shape_schema(shape: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of ``structured_outputs``: ``{"json": schema}`` or ``{"json_object": true}``."""
    schema = shape.get("json")
    return dict(schema) if isinstance(schema, Mapping) else {"type": "object"}


def schema_rule(schema: Mapping[str, Any]) -> str:
    """``schema`` as a part of a Lark grammar."""
    return f"%json {msgspec.json.encode({**schema, 'x-guidance': _LAYOUT}).decode()}"


def find_error(grammar: str) -> str:
    """The reason that the Lark ``grammar`` cannot be used, or "". It takes long: never call it on an event loop."""
    from llguidance import LLMatcher

    return str(LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(grammar), limits=limits()))


def limits() -> Any:
    """Bounds of ``llguidance`` on one grammar."""
    from llguidance import LLParserLimits

    return LLParserLimits(initial_lexer_fuel=MAX_LEXER_FUEL, max_grammar_size=MAX_GRAMMAR_SYMBOLS)


def first_line(error: str) -> str:
    """The first line of an error of ``llguidance``, for people."""
    return error.strip().splitlines()[0][:200] if error.strip() else "it cannot be read"
