"""Schemas that clients send, each with matching and non-matching answers, as texts."""

import json
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, Field

from omnibus.structured.grammar import find_schema_error
from omnibus_models.tool_calls.base import call_schema
from tests.json_schema_suite import Grammar

STRING, INTEGER, NUMBER, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}


def make_strict(**properties: Any) -> dict[str, Any]:
    """Return an object as OpenAI's strict mode requires: every property required, and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def make_tagged(tag: str, **properties: Any) -> dict[str, Any]:
    return make_strict(kind={"const": tag, "type": "string"}, **properties)


NODE = make_strict(value=INTEGER, children={"type": "array", "items": {"$ref": "#/$defs/Node"}})
ADDRESS = {"$ref": "#/$defs/Address"}
ZOD_EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
ZOD_DURATION = r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"
ZOD_TIME = r"^(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?$"
ZOD_HOSTNAME = (
    r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    r"(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$"
)
OLD_DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"

#: Name, schema, texts of answers that fit and of answers that do not.
CASES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    # OpenAI's documentation
    ("strict object", make_strict(name=STRING, age=INTEGER), ['{"name": "x", "age": 3}'], ['{"age": 3, "name": "x"}', '{"name": "x"}']),
    ("reasoning first", make_strict(reasoning=STRING, answer=FLAG), ['{"reasoning": "so", "answer": true}'], ['{"answer": true, "reasoning": "so"}']),
    ("optional by null", make_strict(a={"type": ["string", "null"]}), ['{"a": null}', '{"a": "x"}'], ['{"a": 1}', "{}"]),
    ("steps", make_strict(steps={"type": "array", "items": make_strict(explanation=STRING, output=STRING)}, final=STRING), ['{"steps": [{"explanation": "a", "output": "b"}], "final": "c"}', '{"steps": [], "final": ""}'], ['{"steps": [{"output": "b", "explanation": "a"}], "final": "c"}']),
    ("recursion by #", {**make_strict(label=STRING, children={"type": "array", "items": {"$ref": "#"}})}, ['{"label": "a", "children": [{"label": "b", "children": []}]}'], ['{"label": "a", "children": [{"label": "b"}]}']),
    ("recursion by $defs", {"$ref": "#/$defs/Node", "$defs": {"Node": NODE}}, ['{"value": 1, "children": [{"value": 2, "children": []}]}'], ['{"value": 1, "children": [{"value": "2", "children": []}]}']),
    ("linked list", make_strict(head={"anyOf": [{"$ref": "#/$defs/L"}, {"type": "null"}]}) | {"$defs": {"L": make_strict(v=INTEGER, next={"anyOf": [{"$ref": "#/$defs/L"}, {"type": "null"}]})}}, ['{"head": {"v": 1, "next": {"v": 2, "next": null}}}'], ['{"head": {"v": 1, "next": 2}}']),
    ("anyOf of objects", make_strict(item={"anyOf": [make_strict(name=STRING), make_strict(street=STRING)]}), ['{"item": {"street": "x"}}'], ['{"item": {"city": "x"}}', '{"item": {"name": "x", "street": "y"}}']),
    ("enum", make_strict(unit={"type": "string", "enum": ["F", "C"]}), ['{"unit": "C"}'], ['{"unit": "K"}', '{"unit": "\\u0043"}']),
    ("bounds", make_strict(t={"type": "number", "minimum": -130, "maximum": 130}), ['{"t": -130}', '{"t": 99.5}'], ['{"t": 131}', '{"t": -130.1}', '{"t": 1e5}']),
    ("formats", make_strict(day={"type": "string", "format": "date"}), ['{"day": "2024-02-29"}', '{"day": "2000-02-29"}'], ['{"day": "2026-02-29"}', '{"day": "1900-02-29"}', '{"day": "2026-04-31"}']),
    ("list of 2", make_strict(xs={"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 2}), ['{"xs": [1, 2]}'], ['{"xs": [1]}', '{"xs": [1, 2, 3]}']),
    # oneOf
    ("oneOf by type", {"oneOf": [STRING, INTEGER, {"type": "null"}]}, ['"x"', "1", "null"], ["1.5", "true"]),
    ("oneOf by ranges", {"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "exclusiveMinimum": 3}]}, ["3", "4"], ["3.5"]),
    ("oneOf by const", {"oneOf": [make_tagged("a", x=INTEGER), make_tagged("b", x=STRING)]}, ['{"kind": "a", "x": 1}', '{"kind": "b", "x": ""}'], ['{"kind": "b", "x": 1}', '{"kind": "c", "x": 1}']),
    ("oneOf of references", {"oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "$defs": {"A": make_tagged("a"), "B": make_tagged("b")}}, ['{"kind": "a"}', '{"kind": "b"}'], ['{"kind": "c"}']),
    ("oneOf by closed names", {"oneOf": [make_strict(a=INTEGER), make_strict(b=INTEGER)]}, ['{"a": 1}', '{"b": 1}'], ['{"a": 1, "b": 1}', "{}"]),
    ("oneOf by lengths", {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 3}]}, ['"ab"', '"abc"'], ["1"]),
    ("oneOf by item counts", {"oneOf": [{"type": "array", "maxItems": 0}, {"type": "array", "minItems": 1}]}, ["[]", "[1]"], ["1"]),
    ("oneOf of consts", {"oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]}, ['"a"', '"b"'], ['"c"']),
    ("oneOf within allOf", {"allOf": [{"oneOf": [{"const": 1}, {"const": 2}]}]}, ["1", "2"], ["3"]),
    ("discriminator", {"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}], "discriminator": {"propertyName": "pet"}, "$defs": {"Cat": {"type": "object", "properties": {"pet": {"const": "cat", "default": "cat"}, "lives": INTEGER}}, "Dog": {"type": "object", "properties": {"pet": {"const": "dog", "default": "dog"}}}}}, ['{"pet": "cat", "lives": 9}', '{"pet": "dog"}'], ["{}", '{"lives": 9}', '{"pet": "cow"}']),
    # zod 4
    ("zod object", {"$schema": "https://json-schema.org/draft/2020-12/schema", **make_strict(a=STRING)}, ['{"a": ""}'], ['{"b": ""}']),
    ("zod email", {"type": "string", "format": "email", "pattern": ZOD_EMAIL}, ['"a.b+c@x.org"'], ['".a@x.org"', '"a..b@x.org"', '"a@x"', '"a.@x.org"']),
    ("zod duration", {"type": "string", "format": "duration", "pattern": ZOD_DURATION}, ['"P1D"', '"PT5M"', '"P2W"', '"P1YT1H"'], ['"P"', '"PT"', '"P1DT"', '"1D"']),
    ("zod time", {"type": "string", "format": "time", "pattern": ZOD_TIME}, ['"10:30"', '"23:59:59.5"'], ['"24:00"', '"10:30Z"']),
    ("zod hostname", {"type": "string", "format": "hostname", "pattern": ZOD_HOSTNAME}, ['"a.example"'], ['"-a.example"', '"a b"']),
    ("zod cuid2", {"type": "string", "format": "cuid2", "pattern": "^[0-9a-z]+$"}, ['"abc1"'], ['"Abc"', '""']),
    ("zod base64", {"type": "string", "format": "base64", "contentEncoding": "base64", "pattern": r"^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$"}, ['"YWI="', '""'], ['"a"']),
    ("zod record", {"type": "object", "propertyNames": STRING, "additionalProperties": NUMBER}, ['{"a": 1, "b": 2.5}', "{}"], ['{"a": "1"}']),
    ("zod record of an enum", {"type": "object", "propertyNames": {"type": "string", "enum": ["a", "b"]}, "additionalProperties": NUMBER, "required": ["a", "b"]}, ['{"a": 1, "b": 2}'], ['{"a": 1}', '{"a": 1, "b": 2, "c": 3}']),
    ("zod never", {"type": "object", "properties": {"a": {"not": {}}, "b": INTEGER}, "required": ["b"], "additionalProperties": False}, ['{"b": 1}'], ['{"a": 1, "b": 1}']),
    ("zod int", make_strict(n={"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991}), ['{"n": 0}', '{"n": 9007199254740991}'], ['{"n": 9007199254740992}']),
    ("zod tuple", {"type": "array", "prefixItems": [STRING, NUMBER], "items": False, "minItems": 2}, ['["a", 1]'], ['["a"]', '["a", 1, 2]', '[1, "a"]']),
    ("zod tuple in draft 7", {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [STRING, NUMBER], "additionalItems": False, "minItems": 2}, ['["a", 1]'], ['["a"]', '["a", 1, 2]']),
    ("zod positive", {"type": "number", "exclusiveMinimum": 0}, ["0.1", "7"], ["0", "-1"]),
    ("zod step", {"type": "number", "multipleOf": 0.01}, ["19.99", "2"], ["19.999"]),
    # pydantic 2
    ("pydantic nested", {"$defs": {"Address": {"properties": {"city": {"title": "City", "type": "string"}}, "required": ["city"], "title": "Address", "type": "object"}}, "properties": {"home": ADDRESS, "work": {"anyOf": [ADDRESS, {"type": "null"}], "default": None}}, "required": ["home"], "type": "object"}, ['{"home": {"city": "x"}}', '{"home": {"city": "x"}, "work": null}'], ['{"work": null}', '{"home": {}}', '{"home": null}']),
    ("pydantic tuple", {"maxItems": 2, "minItems": 2, "prefixItems": [INTEGER, STRING], "type": "array"}, ['[1, "a"]'], ['[1]', '["a", 1]', '[1, "a", 2]']),
    ("pydantic dict of literals", {"additionalProperties": INTEGER, "propertyNames": {"enum": ["a", "b"]}, "type": "object"}, ['{"a": 1}', '{"a": 1, "b": 2}', "{}"], ['{"c": 1}', '{"a": "x"}']),
    ("pydantic dict with a pattern", {"patternProperties": {"^x": INTEGER}, "type": "object"}, ['{"x1": 1}', "{}"], ['{"x1": "a"}', '{"\\u0078": "a"}']),
    ("pydantic decimal with a pattern", {"anyOf": [NUMBER, {"type": "string", "pattern": OLD_DECIMAL}]}, ['"1.50"', '"-.5"', "1.5"], ['"abc"', '"."', '"1.2.3"']),
    ("pydantic url", {"format": "uri", "maxLength": 30, "minLength": 1, "type": "string"}, ['"https://example.org/a"'], ['"example"', f'"https://example.org/{"a" * 30}"']),
    ("pydantic bytes and path", make_strict(b={"format": "binary", "type": "string"}, p={"format": "path", "type": "string"}), ['{"b": "x", "p": "/x"}'], ['{"b": 1, "p": "/x"}']),
    ("pydantic date-time", {"format": "date-time", "type": "string"}, ['"2024-02-29T12:00:00Z"', '"2026-01-31t00:00:00.5+01:00"'], ['"2026-02-29T12:00:00Z"', '"2026-02-28T24:00:00Z"', '"2026-02-28T12:00:00"', '"2026-02-28T23:59:60Z"']),
    ("pydantic uuid4", {"format": "uuid4", "type": "string"}, ['"f47ac10b-58cc-4372-a567-0e02b2c3d479"'], ['"f47ac10b-58cc-1372-a567-0e02b2c3d479"']),
    ("pydantic constr", {"maxLength": 4, "minLength": 2, "pattern": "^[a-z]+$", "type": "string"}, ['"ab"', '"abcd"'], ['"a"', '"abcde"', '"AB"']),
    ("pydantic single allOf", {"properties": {"home": {"allOf": [ADDRESS], "description": "Where"}}, "required": ["home"], "$defs": {"Address": make_strict(city=STRING)}}, ['{"home": {"city": "x"}}'], ['{"home": {"town": "x"}}']),
    ("pydantic aliases", make_strict(**{"first name": STRING, "é": INTEGER, 'q"': FLAG}), ['{"first name": "", "é": 1, "q\\"": true}'], ['{"first name": "", "é": "1", "q\\"": true}']),
    # OpenAPI and other generators
    ("nullable", {"type": "string", "nullable": True}, ['"x"', "null"], ["1"]),
    ("int32", {"type": "integer", "format": "int32"}, ["2147483647"], ["2147483648", "1.5"]),
    ("uint8", {"type": "integer", "format": "uint8"}, ["255", "0"], ["256", "-1"]),
    ("draft 4 flag", {"type": "integer", "minimum": 3, "exclusiveMinimum": True}, ["4"], ["3"]),
    ("extensions", {"type": "string", "x-order": 1, "example": "a", "markdownDescription": "b", "deprecated": True}, ['"a"'], ["1"]),
    # common errors of libraries
    ("probability above 0", {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, ["0.1", "0.5"], ["0", "0.6", "-0"]),
    ("no quotes", {"type": "string", "pattern": '^[^"]*$'}, ['"a\\n"', '""', '"\\\\"'], ['"a\\""']),
    ("no backslash", {"type": "string", "pattern": r"^[^\\]+$"}, ['"a"', '"\\""'], ['"\\\\"']),
    ("dot", {"type": "string", "pattern": "^.$"}, ['"a"', '"😀"'], ['"\\r"', '"\\n"', '"\u2028"', '""']),
    ("white space", {"type": "string", "pattern": r"^\S+$"}, ['"ab"'], ['"a b"', '"\ufeff"', '"\u00a0"']),
    ("classes of Rust", {"type": "string", "pattern": r"^[[&&]+$"}, ['"[&"'], ['"x"', '"]"']),
    ("dash behind a class", {"type": "string", "pattern": r"^[\w-.]+$"}, ['"a-.b"'], ['"a`b"', '"a b"']),
    ("escapes in names", {"properties": {"a": INTEGER}, "required": ["a"]}, ['{"a": 1, "b": "x"}'], ['{"a": 1, "\\u0061": "x"}', '{"\\u0061": 1}']),
    ("typed additional names", {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": STRING}, ['{"a": 1, "ab": "x"}', '{"": "x"}'], ['{"a": "x"}', '{"ab": 1}']),
    ("required beside properties", {"type": "object", "properties": {"a": INTEGER}, "required": ["z"]}, ['{"z": 1}', '{"a": 1, "z": 1}'], ['{"a": 1}', "{}"]),
    ("enum of objects", {"enum": [{"b": 1, "a": [1]}, None]}, ['{"b": 1, "a": [1]}', "null"], ['{"b": 1}', '{"b": 1, "a": [2]}']),
    ("length of characters", {"type": "string", "minLength": 2, "maxLength": 2}, ['"😀a"', '"\\n\\n"'], ['"😀"', '"abc"']),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "fitting", "other_texts"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_answers_are_those_that_fit(schema: dict[str, Any], fitting: list[str], other_texts: list[str]) -> None:
    grammar = Grammar(schema)

    assert grammar.error == ""
    assert {text: grammar.accepts_text(text) for text in fitting} == dict.fromkeys(fitting, True)
    assert {text: grammar.accepts_text(text) for text in other_texts} == dict.fromkeys(other_texts, False)


#: Schema, the place and the keyword that its rejection names.
REJECTED: list[tuple[dict[str, Any], str, str]] = [
    ({"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 3}]}, "#/oneOf", "branches 0 and 1"),
    ({"oneOf": [INTEGER, NUMBER]}, "#/oneOf", "branches 0 and 1"),
    ({"properties": {"a": {"oneOf": [STRING, {"const": "x"}]}}}, "#/properties/a/oneOf", "anyOf"),
    ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"}, "#/oneOf", "branches 0 and 1"),
    ({"items": {"not": STRING}}, "#/items", "not"),
    ({"if": {"const": 1}, "then": {"const": 1}}, "#", "if"),
    ({"contains": INTEGER}, "#", "contains"),
    ({"type": "array", "uniqueItems": True}, "#", "uniqueItems"),
    ({"dependentRequired": {"a": ["b"]}}, "#", "dependentRequired"),
    ({"dependentSchemas": {"a": {}}}, "#", "dependentSchemas"),
    ({"dependencies": {"a": ["b"]}}, "#", "dependencies"),
    ({"allOf": [{}, {}], "unevaluatedProperties": False}, "#", "unevaluatedProperties"),
    ({"$dynamicRef": "#x"}, "#", "$dynamicRef"),
    ({"type": "any"}, "#", "type"),
    ({"minLength": "3"}, "#", "minLength"),
    ({"minimum": True}, "#", "minimum"),
    ({"required": "a"}, "#", "required"),
    ({"properties": []}, "#", "properties"),
    ({"properties": {"a/b": {"enum": []}}}, "#/properties/a~1b", "enum"),
    ({"properties": {"a": 3}}, "#/properties/a", "a schema is"),
    ({"const": 2**63 + 1}, "#", str(2**63 + 1)),
    ({"type": "string", "format": "nonsense"}, "#", "nonsense"),
    ({"type": "string", "pattern": "a(?=b)"}, "#", "look-around"),
    ({"type": "string", "pattern": r"\bword\b"}, "#", "boundaries"),
    ({"type": "string", "pattern": r"(a)\1"}, "#", "references"),
    ({"type": "string", "pattern": r"\Aa\Z"}, "#", "'\\A'"),
    ({"$ref": "#/$defs/Missing"}, "#", "Missing"),
    ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, "#", "$ref"),
    ({"type": "object", "minProperties": 2}, "#", "minProperties"),
    ({"patternProperties": {"^x": {}}, "additionalProperties": INTEGER}, "#", "additionalProperties"),
    ({"propertyNames": {"minLength": 1, "pattern": "x"}}, "#", "propertyNames"),
    ({"$ref": "#/$defs/A", "$defs": {"A": {"not": STRING}}}, "#/$defs/A", "not"),
    ({"$ref": "#/components/A", "components": {"A": {"contains": {}}}}, "#/components/A", "contains"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "place", "feature_name"), REJECTED, ids=[json.dumps(case[0])[:60] for case in REJECTED]
)
def test_what_cannot_be_obeyed_is_named_with_its_place(schema: dict[str, Any], place: str, feature_name: str) -> None:
    error = find_schema_error(schema)

    assert error.startswith(f"at {place}: ")
    assert feature_name in error


UNUSED = {"$defs": {"Unused": {"not": STRING}}, "type": "integer"}
NOTHING_SAID: list[dict[str, Any]] = [
    {"type": "array", "uniqueItems": False},
    {"if": {"const": 1}},
    {"then": {"const": 1}, "type": "integer"},
    {"minContains": 2},
    {"dependentRequired": {}},
    {"unevaluatedProperties": True},
    UNUSED,
]


@pytest.mark.parametrize("schema", NOTHING_SAID, ids=json.dumps)
def test_keywords_that_say_nothing_are_no_reason_to_reject(schema: dict[str, Any]) -> None:
    assert find_schema_error(schema) == ""


class City(BaseModel, extra="forbid"):
    name: str = Field(min_length=1)
    twin: "City | None" = None


def test_references_of_tools_lead_into_their_own_schemas() -> None:
    other = make_strict(x={"$ref": "#/$defs/City"}) | {"$defs": {"City": INTEGER}}
    tools = [{"function": {"name": "a", "parameters": City.model_json_schema()}}, {"function": {"name": "b", "parameters": other}}]  # fmt: skip

    full_grammar, alone = Grammar(call_schema(tools)), Grammar(call_schema(tools[:1]))

    nested_call = '{"name": "a", "arguments": {"name": "x", "twin": {"name": "y", "twin": null}}}'
    for grammar in (full_grammar, alone):
        assert grammar.error == ""
        assert grammar.accepts_text(nested_call)
        assert not grammar.accepts_text(nested_call.replace('"y"', "1"))
    assert full_grammar.accepts_text('{"name": "b", "arguments": {"x": 1}}')
    assert not full_grammar.accepts_text('{"name": "b", "arguments": {"x": {"name": "x"}}}')


def test_order_of_properties_is_that_of_the_schema_however_it_is_put_together() -> None:
    schema = {"allOf": [{"$ref": "#/$defs/Z"}, make_strict(a=INTEGER)], "$defs": {"Z": {"properties": {"z": INTEGER}}}}
    del schema["allOf"][1]["additionalProperties"]

    grammar = Grammar(schema)

    assert grammar.accepts_text('{"z": 1, "a": 2}')
    assert not grammar.accepts_text('{"a": 2, "z": 1}')


@pytest.mark.behaviour(
    "llguidance 1.7.6",
    'lets a quote or a backslash through where a class of a pattern leaves it out (`^[^"]*$`)',
    "has every such class leave out a control character as well, which avoids the fault",
    source="JSON Schema 2020-12, validation, 6.3.3",
)
def test_a_class_that_leaves_out_quotes_lets_none_through() -> None:
    for pattern, escape in (('^[^"]*$', '\\"'), (r"^[^\\\\]*$", "\\\\"), ('^[^"\\n]+$', '\\"')):
        grammar = Grammar({"type": "string", "pattern": pattern})
        assert grammar.accepts_text('"ab"')
        assert not grammar.accepts_text(f'"a{escape}b"')


@pytest.mark.behaviour(
    "llguidance 1.7.6",
    "lets a whole number through that `exclusiveMinimum` excludes, if `maximum` is less than 1 above it",
    "bounds such numbers a billionth within",
    source="JSON Schema 2020-12, validation, 6.2.5",
)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_bound_that_is_excluded_is_not_written(sign: int) -> None:
    bounds = ("exclusiveMinimum", "maximum") if sign > 0 else ("exclusiveMaximum", "minimum")
    for bound in (0, 1, 2):
        grammar = Grammar({"type": "number", bounds[0]: sign * bound, bounds[1]: sign * (bound + 0.5)})
        assert not grammar.accepts_text(str(sign * bound))
        assert not grammar.accepts_text(f"{sign * bound}.0")
        assert grammar.accepts_text(str(sign * (bound + 0.25)))


@pytest.mark.behaviour(
    "llguidance 1.7.6",
    'takes `"\\\\u0061"` for another name than `"a"`, so that a listed property comes twice, the second time as anything',
    "lets names that are not listed be written without such escapes alone",
    source="RFC 8259, 8.3",
)
def test_a_listed_property_does_not_come_again_in_escapes() -> None:
    grammar = Grammar({"properties": {"a": INTEGER, "bc": INTEGER}, "required": ["a"]})

    assert grammar.accepts_text('{"a": 1, "b": "x", "bcd": null, "": 0, "d\\n": 1}')
    assert not grammar.accepts_text('{"a": 1, "\\u0061": "x"}')
    assert not grammar.accepts_text('{"a": 1, "b\\u0063": "x"}')


@pytest.mark.behaviour(
    "pydantic 2.14",
    "gives the text form of a `Decimal` no pattern: any text fits its JSON schema",
    "lets such texts through, as the schema says, and says so in its documentation",
    source="JSON Schema 2020-12, validation, 6.1.1",
)
def test_any_text_fits_the_schema_of_a_decimal() -> None:
    class Price(BaseModel):
        amount: Decimal

    assert "pattern" not in json.dumps(Price.model_json_schema())
    assert Grammar(Price.model_json_schema()).accepts_text('{"amount": "hello"}')
