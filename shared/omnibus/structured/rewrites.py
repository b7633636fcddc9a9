"""Keywords of one schema, rewritten so that ``llguidance`` enforces them exactly.

Each function changes ``schema`` in place. ``apart`` is true if the document merges no objects of several schemas.
"""

import math
from typing import Any

from omnibus.structured.patterns import (
    FORMATS,
    FREE_FORMATS,
    LENGTHS,
    NATIVE_FORMATS,
    convert_pattern,
    exclude_names,
    is_local_time,
)

Schema = dict[str, Any]

#: The greatest integer that the library compares, and the one above which floats skip integers.
_MAX_INTEGER, _EXACT = 2**63 - 1, 2**53
#: Least distance of a number from an excluded bound.
_LEAST_STEP = 1e-9
#: Formats of numbers (OpenAPI, and Rust's and Go's generators), and their ranges.
_WIDTHS = {f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)}
_WIDTHS |= {f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)} | {"uint": (0, 2**64 - 1)}
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_SAID_OF_NAMES = frozenset({"title", "description", "$comment", "examples", "default", "type"})


class SchemaError(ValueError):
    """An unsupported schema; the text has the place and the remedy."""


def _rewrite_counts(schema: Schema, place: str, apart: bool) -> None:
    for keyword in _COUNTS:
        if keyword in schema:
            schema[keyword] = int(schema[keyword])


def _rewrite_nullable(schema: Schema, place: str, apart: bool) -> None:
    """Apply ``nullable`` of OpenAPI 3.0.3: next to ``type``, it allows null as well."""
    if schema.pop("nullable", None) is True and "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        schema["type"] = list(dict.fromkeys([*kinds, "null"]))


def _check_values(schema: Schema, place: str, apart: bool) -> None:
    for value in [schema[name] for name in ("const",) if name in schema] + schema.get("enum", []):
        waiting = [value]
        while waiting:
            each = waiting.pop()
            if isinstance(each, dict | list):
                waiting += each.values() if isinstance(each, dict) else each
            elif isinstance(each, int | float) and abs(each) > _EXACT:
                raise SchemaError(
                    f"at {place}: the number {each} is not exact as a float (use up to 2**53, or a string)"
                )


# Numbers


def _rewrite_numbers(schema: Schema, place: str, apart: bool) -> None:
    _split_flags(schema)
    kinds = schema.get("type", ())
    if (width := _WIDTHS.get(schema.get("format", ""))) and not _may_be_text(kinds):
        del schema["format"]
        schema["minimum"] = max(schema.get("minimum", width[0]), width[0])
        schema["maximum"] = min(schema.get("maximum", width[1]), width[1])
    for name in ("exclusiveMinimum", "exclusiveMaximum"):
        if name in schema and (abs(schema[name]) >= _EXACT or _lets_itself_through(schema, name, apart)):
            _narrow_exclusive(schema, name)
    for name, towards in (("minimum", math.inf), ("maximum", -math.inf)):
        if name in schema:
            schema[name] = _round_bound(schema[name], towards, place)


def _split_flags(schema: Schema) -> None:
    """Convert draft 4's flags for excluded bounds."""
    for name, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(name), bool) and schema.pop(name) and bound in schema:
            schema[name] = schema.pop(bound)


def _lets_itself_through(schema: Schema, name: str, apart: bool) -> bool:
    """Return whether ``llguidance`` 1.7 wrongly allows the excluded bound itself.

    It does so for integer bounds whose other bound is less than 1 away, farther from 0.
    """
    bound, sign = schema[name], 1 if name == "exclusiveMinimum" else -1
    if schema.get("type") == "integer" or bound != int(bound) or bound * sign < 0:
        return False
    names = ("maximum", "exclusiveMaximum") if sign > 0 else ("minimum", "exclusiveMinimum")
    bounds = [schema[other] * sign for other in names if other in schema]
    return min(bounds) < bound * sign + 1 if bounds else not apart


def _narrow_exclusive(schema: Schema, name: str) -> None:
    """Replace an excluded bound by an included one slightly within."""
    bound, value = name.removeprefix("exclusive").lower(), schema.pop(name)
    step = 1 if isinstance(value, int) and abs(value) >= _EXACT else max(_LEAST_STEP, math.ulp(value))
    if bound == "minimum":
        schema[bound] = max(schema.get(bound, -math.inf), value + step)
    else:
        schema[bound] = min(schema.get(bound, math.inf), value - step)


def _round_bound(value: float, towards: float, place: str) -> float:
    """Return ``value`` as a float that admits no number outside the bound."""
    try:
        float_value = float(value)
    except OverflowError:
        raise SchemaError(f"at {place}: the bound {str(value)[:40]} is too large") from None
    if isinstance(value, int) and abs(value) <= _EXACT:
        return value
    if (float_value < value) if towards > 0 else (float_value > value):
        float_value = math.nextafter(float_value, towards)
    whole = int(float_value) if float_value == int(float_value) else float_value
    return max(-_MAX_INTEGER, min(whole, _MAX_INTEGER)) if (whole > 0) != (towards > 0) else whole


def _may_be_text(kinds: Any) -> bool:
    return not kinds or "string" in kinds


# Texts


def _rewrite_texts(schema: Schema, place: str, apart: bool) -> None:
    if is_local_time(schema.get("format"), schema.get("pattern")):
        del schema["format"]
    _rewrite_format(schema, place)
    if "pattern" in schema:
        schema["pattern"], most = convert_pattern(schema["pattern"])
        if most:
            schema["maxLength"] = min(schema.get("maxLength", most), most)


def _rewrite_format(schema: Schema, place: str) -> None:
    format = schema.get("format")
    if format in LENGTHS:
        schema["allOf"] = [*schema.get("allOf", ()), {"pattern": LENGTHS[format]}]
    if format is None or format in NATIVE_FORMATS:
        return
    del schema["format"]
    if not _may_be_text(schema.get("type", ())) or format in FREE_FORMATS:
        return
    if format in FORMATS:
        schema["allOf"] = [*schema.get("allOf", ()), {"pattern": f"^(?:{FORMATS[format]})$"}]
    elif "pattern" not in schema:  # with a pattern, a format is only an annotation (JSON Schema)
        formats = ", ".join(sorted({*FORMATS, *NATIVE_FORMATS, *FREE_FORMATS}))
        raise SchemaError(f"at {place}: the format '{format[:64]}' is unknown (write a pattern, or use {formats})")


# Lists


def _rewrite_lists(schema: Schema, place: str, apart: bool) -> None:
    if not isinstance(schema.get("items"), list):
        return
    schema["prefixItems"] = schema.pop("items")
    if "additionalItems" in schema:
        schema["items"] = schema.pop("additionalItems")


# Objects


def _rewrite_names(schema: Schema, place: str, apart: bool) -> None:
    names = schema.pop("propertyNames", None)
    if names is None or names is True:
        return
    if names is False:
        raise SchemaError(f"at {place}: propertyNames allows none (use additionalProperties)")
    name_rules = {name: value for name, value in names.items() if name not in _SAID_OF_NAMES}
    if not name_rules:
        return
    listed_names = name_rules.get("enum", [name_rules["const"]] if "const" in name_rules else None)
    other_schema = schema.get("additionalProperties", True)
    if len(name_rules) > 1 or "patternProperties" in schema or (listed_names is None and schema.get("properties")):
        raise SchemaError(f"at {place}: propertyNames is not supported here (list the names as properties)")
    if listed_names is not None:
        properties = schema.get("properties", {})
        allowed_properties = {
            name: properties.get(name, other_schema) for name in (*properties, *listed_names) if name in listed_names
        }
        schema["properties"] = {
            **allowed_properties,
            **{name: False for name in properties if name not in allowed_properties},
        }
    else:
        schema["patternProperties"] = {_name_pattern(name_rules, place): other_schema}
    schema["additionalProperties"] = False


def _name_pattern(name_rules: Schema, place: str) -> str:
    """Return the regular expression of the names that ``name_rules`` allows."""
    if isinstance(name_rules.get("pattern"), str):
        return str(name_rules["pattern"])
    if name_rules.get("format") in FORMATS:
        return f"^(?:{FORMATS[name_rules['format']]})$"
    if isinstance(name_rules.get("minLength"), int):
        return rf"^[\s\S]{{{name_rules['minLength']},}}$"
    if isinstance(name_rules.get("maxLength"), int):
        return rf"^[\s\S]{{0,{name_rules['maxLength']}}}$"
    raise SchemaError(f"at {place}: propertyNames must have enum, const, pattern, minLength or maxLength")


def _rewrite_objects(schema: Schema, place: str, apart: bool) -> None:
    _check_count_of_properties(schema, place)
    if "patternProperties" in schema:
        _close_patterns(schema, place)
    elif apart and (schema.get("properties") or schema.get("required")):
        _name_others(schema)


def _check_count_of_properties(schema: Schema, place: str) -> None:
    least, sure = schema.get("minProperties", 0), len(set(schema.get("required", ())))
    if least <= sure:
        schema.pop("minProperties", None)
    elif least > sure + 1 and schema.get("additionalProperties", True) is not False:
        raise SchemaError(
            f"at {place}: minProperties {least} is not supported, because a name that is not listed may appear twice "
            "(list the properties as required)"
        )


def _close_patterns(schema: Schema, place: str) -> None:
    """Forbid names that fit no pattern: the library confuses some of them with those that do."""
    if schema.get("additionalProperties", True) not in (True, False, {}):
        raise SchemaError(f"at {place}: additionalProperties next to patternProperties is not supported (use false)")
    schema["additionalProperties"] = False
    new_patterns: Schema = {}
    for pattern, each in schema["patternProperties"].items():
        new_pattern, most = convert_pattern(pattern)
        if most:
            raise SchemaError(f"at {place}: patternProperties with look-around are not supported ('{pattern[:64]}')")
        new_patterns[new_pattern] = each
    schema["patternProperties"] = new_patterns


def _name_others(schema: Schema) -> None:
    """Exclude the listed names from those of other properties, in every spelling.

    The library takes ``"\\u0061"`` for another name than ``"a"``, unless it follows from a pattern.
    """
    other_schema = schema.get("additionalProperties", True)
    if other_schema is False:
        return
    properties = dict(schema.get("properties", {}))
    properties |= {name: other_schema for name in schema.get("required", ()) if name not in properties}
    schema["properties"] = properties
    schema["patternProperties"] = {exclude_names(list(properties)): other_schema}
    schema["additionalProperties"] = False


REWRITES = (
    _rewrite_counts,
    _rewrite_nullable,
    _check_values,
    _rewrite_numbers,
    _rewrite_texts,
    _rewrite_lists,
    _rewrite_names,
    _rewrite_objects,
)
