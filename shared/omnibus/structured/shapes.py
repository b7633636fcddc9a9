"""Shapes of answers other than JSON: regular expressions, choices of texts, and grammars."""

import json
from collections.abc import Mapping
from typing import Any

from omnibus.structured.grammar import find_error, find_schema_error, schema_rule, shape_schema

#: Kinds of shapes, as vLLM's ``structured_outputs`` calls them.
REGEX, CHOICE, GRAMMAR = "regex", "choice", "grammar"


def shape_rule(shape: Mapping[str, Any]) -> str:
    """Return ``structured_outputs`` as the right side of a Lark rule.

    For a whole grammar, use ``whole_grammar``.
    """
    if REGEX in shape:
        return _regex_rule(str(shape[REGEX]))
    if CHOICE in shape:
        return " | ".join(json.dumps(str(text), ensure_ascii=False) for text in shape[CHOICE])
    return schema_rule(shape_schema(shape))


def whole_grammar(shape: Mapping[str, Any]) -> str:
    """Return the Lark grammar of answers with ``shape``. Raises ``ValueError`` for an invalid grammar."""
    if GRAMMAR not in shape:
        return f"start: {shape_rule(shape)}"
    from llguidance.gbnf_to_lark import any_to_lark

    return str(any_to_lark(str(shape[GRAMMAR])))


def find_shape_error(shape: Mapping[str, Any]) -> str:
    """Return the reason that no answer can have ``shape``, or "".

    It takes long: never call it on an event loop.
    """
    if not {REGEX, CHOICE, GRAMMAR} & shape.keys():
        return find_schema_error(shape_schema(shape))
    try:
        return find_error(whole_grammar(shape))
    except ValueError as error:
        return str(error)


def _regex_rule(pattern: str) -> str:
    from llguidance import LLMatcher

    grammar = json.loads(LLMatcher.grammar_from_regex(pattern))
    return str(grammar["grammars"][0]["lark_grammar"]).removeprefix("start: ")
