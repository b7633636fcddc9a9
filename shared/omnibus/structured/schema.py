"""JSON schemas that a grammar can enforce; other keywords are rejected with their place.

The dialect is 2020-12, with the forms of earlier drafts and OpenAPI 3.0: ``items`` as a list, ``definitions``,
``exclusiveMinimum`` as a flag, ``nullable``. Unknown keywords are annotations, as in JSON Schema (core, 6.5). Keywords
that a grammar cannot express, such as ``not``, are rejected. An answer that only seems to fit its schema would be
worse.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from omnibus.structured.disjoint import find_overlap
from omnibus.structured.patterns import PatternError
from omnibus.structured.rewrites import REWRITES, SchemaError

Schema = dict[str, Any]

#: Keywords whose values are schemas: by name, in a list, or one alone.
_NAMED, _LISTED = ("properties", "patternProperties"), ("allOf", "anyOf", "oneOf", "prefixItems")
_ALONE = ("items", "additionalProperties", "additionalItems", "propertyNames")
_KINDS = ("null", "boolean", "object", "array", "number", "integer", "string")
_SPLIT = "allow several branches with anyOf, or split the request"
#: Keywords that no grammar can enforce, and what to do instead.
_REFUSED = {
    "not": "list what is allowed",
    "if": _SPLIT,
    "contains": "leave it out and check the answer",
    "uniqueItems": "leave it out and check the answer",
    "dependentRequired": _SPLIT,
    "dependentSchemas": _SPLIT,
    "dependencies": _SPLIT,
    "unevaluatedProperties": "use additionalProperties",
    "unevaluatedItems": "use prefixItems and items",
    "$dynamicRef": "use $ref",
    "$dynamicAnchor": "use $defs",
    "$recursiveRef": "use $ref",
    "$recursiveAnchor": "use $defs",
    "extends": "use allOf",
    "disallow": "list what is allowed",
    "divisibleBy": "use multipleOf",
}


def prepare_schema(schema: Mapping[str, Any]) -> Schema:
    """Return a schema of the same values for ``llguidance``, without its options.

    Raises ``SchemaError`` with the place of an unsupported keyword.
    """
    document = copy.deepcopy(dict(schema))
    places = _collect_schemas(document)
    for place, each in places.items():
        _settle_one_of(document, place, each)
    apart = not any(_is_merged(each) for each in places.values())
    for place, each in places.items():
        each.pop("$schema", None)
        for rewrite in REWRITES:
            try:
                rewrite(each, place, apart)
            except PatternError as error:
                raise SchemaError(f"at {place}: unsupported pattern ({error})") from None
    return document


def _collect_schemas(document: Schema) -> dict[str, Schema]:
    """Return every schema of ``document`` that may apply, by its place.

    All of them are well formed.
    """
    schemas: dict[int, tuple[str, Schema]] = {}
    waiting: list[tuple[str, Any]] = [("#", document)]
    while waiting:
        place, schema = waiting.pop()
        if isinstance(schema, bool) or id(schema) in schemas:
            continue
        if not isinstance(schema, dict):
            raise SchemaError(f"at {place}: a schema is an object, true or false")
        schemas[id(schema)] = (place, schema)
        _check_form(place, schema)
        _drop_empty_keywords(schema)
        _refuse_keywords(place, schema)
        waiting += _child_schemas(place, schema)
        if "$ref" in schema:
            waiting += _referred_schemas(document, place, schema["$ref"])
    return dict(schemas.values())


def _child_schemas(place: str, schema: Schema) -> Iterator[tuple[str, Any]]:
    for keyword in _NAMED:
        for name, each in schema.get(keyword, {}).items():
            yield f"{place}/{keyword}/{_escape(name)}", each
    for keyword in _LISTED:
        for index, each in enumerate(schema.get(keyword, ())):
            yield f"{place}/{keyword}/{index}", each
    for keyword in _ALONE:
        value = schema.get(keyword)
        if isinstance(value, list) and keyword == "items":
            yield from ((f"{place}/items/{index}", each) for index, each in enumerate(value))
        elif keyword in schema:
            yield f"{place}/{keyword}", value


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


# References


def _referred_schemas(document: Schema, place: str, reference: str) -> Iterator[tuple[str, Any]]:
    """Yield the schemas that ``reference`` names: one by a pointer, or each with that name."""
    if reference == "#" or reference.startswith("#/"):
        if document.get("$id") is None and any("$id" in each for each in _named_schemas(document)):
            raise SchemaError(f"at {place}: '{reference}' next to a nested $id is ambiguous (refer to a name)")
        yield reference, _follow(document, place, reference)
        return
    target = reference.partition("#")[0]
    if "#/" in reference or (
        target and not any(str(each.get("$id")).endswith(target) for each in _named_schemas(document))
    ):
        raise SchemaError(f"at {place}: $ref '{reference[:200]}' must refer to this schema, as '#/$defs/Name'")
    yield from ((f"{place}/$ref ({each.get('$id', each.get('$anchor'))})", each) for each in _named_schemas(document))


def _named_schemas(value: Any) -> Iterator[Schema]:
    """Yield every object in a document that may be a named schema."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if any(isinstance(each.get(name), str) for name in ("$id", "$anchor", "$dynamicAnchor")):
                yield each
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def _follow(document: Schema, place: str, reference: str) -> Any:
    value: Any = document
    for part in unquote(reference).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, ValueError, TypeError):
            raise SchemaError(f"at {place}: $ref '{reference[:200]}' names nothing in this schema") from None
    return value


# Keywords


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value == int(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_type(value: Any) -> bool:
    types = value if isinstance(value, list) and value else [value]
    return all(isinstance(each, str) and each in _KINDS for each in types)


def _is_bound(value: Any) -> bool:
    return _is_number(value) or isinstance(value, bool)


_FORMS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(_NAMED, (lambda value: isinstance(value, dict), "an object of schemas")),
    **dict.fromkeys(_LISTED, (lambda value: isinstance(value, list) and bool(value), "a list of schemas")),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        (_is_count, "a whole number, 0 or more"),
    ),
    **dict.fromkeys(("minimum", "maximum"), (_is_number, "a number")),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), (_is_bound, "a number")),
    **dict.fromkeys(("pattern", "format", "$ref"), (lambda value: isinstance(value, str), "a text")),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "required": (_is_names, "a list of names"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list of values"),
    "type": (_is_type, f"one of {', '.join(_KINDS)}, or a list of them"),
}


def _check_form(place: str, schema: Schema) -> None:
    for keyword, value in schema.items():
        check, form = _FORMS.get(keyword, (None, ""))
        if check is not None and not check(value):
            raise SchemaError(f"at {place}: {keyword} must be {form}")


#: Keywords without effect in a schema, and the condition under which they have none.
_SAYS_NOTHING: dict[str, Callable[[Schema], bool]] = {
    "not": lambda schema: schema["not"] is False or _is_never(schema["not"]),
    "if": lambda schema: schema.keys().isdisjoint(("then", "else", "unevaluatedItems", "unevaluatedProperties")),
    "then": lambda schema: "if" not in schema,
    "else": lambda schema: "if" not in schema,
    "minContains": lambda schema: "contains" not in schema,
    "maxContains": lambda schema: "contains" not in schema,
    "uniqueItems": lambda schema: schema["uniqueItems"] is False or schema.get("maxItems", 2) <= 1,
    "dependentRequired": lambda schema: (
        isinstance(schema["dependentRequired"], dict) and not any(schema["dependentRequired"].values())
    ),
    "dependentSchemas": lambda schema: schema["dependentSchemas"] == {},
    "dependencies": lambda schema: schema["dependencies"] == {},
    "unevaluatedProperties": lambda schema: (
        schema["unevaluatedProperties"] in (True, {}) or "additionalProperties" in schema
    ),
    "unevaluatedItems": lambda schema: (
        schema["unevaluatedItems"] in (True, {}) or isinstance(schema.get("items"), dict)
    ),
    "additionalItems": lambda schema: not isinstance(schema.get("items"), list),
    "required": lambda schema: schema["required"] == [],
}
_APPLIED_IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf", "if", "contains", "patternProperties")


def _is_never(schema: Any) -> bool:
    """Return whether ``schema`` is ``{"not": {}}``, which nothing fits."""
    return isinstance(schema, dict) and len(schema) == 1 and schema.get("not") in ({}, True)


def _drop_empty_keywords(schema: Schema) -> None:
    for keyword in [name for name, says_nothing in _SAYS_NOTHING.items() if name in schema and says_nothing(schema)]:
        del schema[keyword]
    if schema.get("not") in ({}, True):
        schema.clear()
        schema["allOf"] = [False]
    for keyword, usual in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        if keyword in schema and not any(each in schema for each in _APPLIED_IN_PLACE) and usual not in schema:
            schema[usual] = schema.pop(keyword)


def _refuse_keywords(place: str, schema: Schema) -> None:
    if place != "#" and "$ref" in schema and "$id" in schema:
        raise SchemaError(f"at {place}: $id next to $ref has different meanings in different drafts (leave it out)")
    for keyword, advice in _REFUSED.items():
        if keyword in schema:
            raise SchemaError(f"at {place}: {keyword} is not supported ({advice})")


# Alternatives


def _settle_one_of(document: Schema, place: str, schema: Schema) -> None:
    """Replace ``oneOf`` by ``anyOf``, if no value fits two of its branches."""
    branches = schema.get("oneOf")
    if branches is None:
        return
    tag = _tag_of(schema)
    overlap = find_overlap(branches, lambda each: _find_target(document, each), tag)
    if overlap is not None:
        raise SchemaError(
            f"at {place}/oneOf: a value may fit branches {overlap[0]} and {overlap[1]} (make them differ by "
            "type or a required const, or use anyOf)"
        )
    if tag:
        branches = [{"required": [tag], "allOf": [each]} for each in branches]
    entries = [("anyOf" if name == "oneOf" else name, branches if name == "oneOf" else schema[name]) for name in schema]
    if "anyOf" in schema:
        entries = [(name, value) for name, value in schema.items() if name != "oneOf"]
        entries.append(("allOf", [*schema.get("allOf", ()), {"anyOf": branches}]))
    schema.clear()
    schema.update(entries)


def _tag_of(schema: Schema) -> str:
    """Return the property that OpenAPI's ``discriminator`` names.

    It is required, and its value determines the branch.
    """
    discriminator = schema.get("discriminator")
    name = discriminator.get("propertyName") if isinstance(discriminator, dict) else None
    return name if isinstance(name, str) else ""


def _find_target(document: Schema, schema: Mapping[str, Any]) -> Any:
    reference = schema["$ref"]
    return _follow(document, "#", reference) if reference == "#" or reference.startswith("#/") else None


def _is_merged(schema: Schema) -> bool:
    """Return whether objects of several schemas are merged.

    Then one of them cannot list all their names.
    """
    sources = sum(name in schema for name in ("$ref", "anyOf", "oneOf")) + len(schema.get("allOf", ()))
    return sources + any(name in schema for name in (*_NAMED, "additionalProperties")) > 1
