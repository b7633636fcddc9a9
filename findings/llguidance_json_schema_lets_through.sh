#!/usr/bin/env bash
# llguidance 1.7.6: JSON schemas whose grammars let through what the schemas forbid.
#
# Guess: a schema that compiles without an error is enforced.
# What happens:
#   {"type": "string", "pattern": "^[^\"]$"}: a class that leaves out the quote lets a quote through, as does one that
#   leaves out the backslash; any other character that is left out is refused.
#   {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}: 0 is let through. It is refused for "maximum": 2.
#   {"properties": {"a": {"type": "integer"}}, "required": ["a"]}: a second "a" whose name is written "\u0061" may be a
#   text, and parsers take the last one. A second "a" that is written as it is may not.
# Sources: JSON Schema 2020-12, validation, 6.3.3 (pattern) and 6.2.5 (exclusiveMinimum).
# Exits with 1 when this changes.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet llguidance==1.7.6 jsonschema==4.26.0

cat > "$folder/show.py" <<'PYTHON'
import json

import jsonschema
from llguidance import LLMatcher, LLTokenizer

TOKENIZER = LLTokenizer("byte")


def lets_through(schema, text):
    matcher = LLMatcher(TOKENIZER, LLMatcher.grammar_from_json_schema(json.dumps(schema)), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    body = list(text.encode())
    return matcher.try_consume_tokens(body) == len(body) and matcher.is_accepting()


CASES = [
    ({"type": "string", "pattern": '^[^"]$'}, '"\\""'),
    ({"type": "string", "pattern": r"^[^\\]$"}, '"\\\\"'),
    ({"type": "string", "pattern": "^[^/]$"}, '"/"'),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "0"),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 2}, "0"),
    ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, '{"a":1,"\\u0061":"x"}'),
    ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, '{"a":1,"a":"x"}'),
]
found = []
for schema, text in CASES:
    valid = jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    found.append(lets_through(schema, text))
    print(f"{json.dumps(schema)}: {text} is {'valid' if valid else 'invalid'}, let through: {found[-1]}")
raise SystemExit(found != [True, True, False, True, False, True, False])
PYTHON
"$folder/venv/bin/python" "$folder/show.py"
