"""Grammars of answers: JSON schemas in ``llguidance``'s form, and limits on their cost."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from omnibus.structured.rewrites import SchemaError
from omnibus.structured.schema import prepare_schema

#: Bytes of the JSON of one schema.
MAX_SCHEMA_BYTES = 128 * 1024
#: Symbols of a grammar, and work of its lexer; a grammar that needs more fails to compile.
MAX_GRAMMAR_SYMBOLS, MAX_LEXER_FUEL = 50_000, 500_000
#: Bytes of an answer that are tried when a schema is checked, and the bytes that are tried first: they lead into
#: objects and lists, and out of strings.
MAX_TRIED_BYTES, _OPENINGS = 64, b'"{[:, ]}'
#: Layout of answers, as most models write JSON: a space after commas and colons, and none elsewhere. With free layout,
#: a model could write white space forever.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
#: Beginning of the library's schema errors: a place in the grammar, which clients do not see.
_PREFIX = re.compile(r"^at \d+\(\d+\): failed to compile JSON schema: ")


def shape_schema(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of ``structured_outputs``.

    The shape is ``{"json": schema}`` or ``{"json_object": true}``.
    """
    schema = shape.get("json")
    return dict(schema) if isinstance(schema, Mapping) else {"type": "object"}


def schema_rule(schema: Mapping[str, Any]) -> str:
    """Return ``schema`` as a part of a Lark grammar. Raises ``SchemaError`` if unsupported."""
    return f"%json {msgspec.json.encode({**prepare_schema(schema), 'x-guidance': _LAYOUT}).decode()}"


def find_error(grammar: str) -> str:
    """Return the reason that the Lark ``grammar`` cannot be used, or "".

    It takes long: never call it on an event loop.
    """
    from llguidance import LLMatcher

    return str(LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(grammar), limits=limits()))


def find_schema_error(schema: Mapping[str, Any]) -> str:
    """Return the reason that answers cannot be constrained to ``schema``, or "".

    It takes long: never call it on an event loop. A schema may compile and still need a larger parser row than
    ``llguidance`` allows. For example, thousands of optional properties do so after their first brace. So the first
    bytes of an answer are tried as well.
    """
    try:
        grammar = f"start: {schema_rule(schema)}"
    except SchemaError as error:
        return str(error)
    return find_error(grammar) or _find_row_error(grammar)


def _find_row_error(grammar: str) -> str:
    """Walk through the first bytes that ``grammar`` allows, preferring nested values."""
    from llguidance import LLMatcher, LLTokenizer

    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0, limits=limits())
    for _ in range(MAX_TRIED_BYTES):
        bitmask = matcher.compute_bitmask()
        if matcher.is_error() or matcher.is_stopped():
            break
        following = [byte for byte in range(256) if bitmask[byte // 8] >> byte % 8 & 1]
        if not following:
            break
        matcher.consume_token(min(following, key=_openings_first))
    return str(matcher.get_error())


def _openings_first(byte: int) -> tuple[int, int]:
    place = _OPENINGS.find(byte)
    return (place if place >= 0 else len(_OPENINGS), byte)


def limits() -> Any:
    """Return the limits of ``llguidance`` on one grammar."""
    from llguidance import LLParserLimits

    return LLParserLimits(initial_lexer_fuel=MAX_LEXER_FUEL, max_grammar_size=MAX_GRAMMAR_SYMBOLS)


def first_line(error: str) -> str:
    """Return the first line of an ``llguidance`` error, without its place."""
    message = _PREFIX.sub("", error.strip()).splitlines()[0][:300] if error.strip() else "it cannot be read"
    return message.replace("NoExtensionBias", "names of properties and of patternProperties cannot be told apart")
