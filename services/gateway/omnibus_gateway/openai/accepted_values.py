"""Accepted values of a field, read from its type for error messages."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

_STEP = re.compile(r"\[(?P<item>[^\]]*)\]|\.?(?P<field>[^.\[]+)")
#: Limit of the values that an error lists.
_MAX_LISTED = 40


def accepted_values(body: Any, path: str, sent_body: Any = None) -> tuple[str, ...]:
    """Return the strings that ``path`` (as ``messages[0].role``) accepts in ``body``.

    ``body`` is the type of the request's body. ``sent_body`` is the value from the client, as JSON or decoded. It
    selects
    the struct of a union: a tool message has other parts than a user message. Returns () if the field is not a choice
    among strings.
    """
    types, value = [inspect.type_info(body)], _decode(sent_body)
    for step in _STEP.finditer(path):
        parents = [each for kind in types for each in _matching_types(kind, value)]
        types = [inner for each in parents for inner in _inner_types(each, step["field"])]
        if not types:
            return tuple(dict.fromkeys(_tags(parents, step["field"] or "")))[:_MAX_LISTED]
        value = _step_into(value, step)
    options = (value for each in types for value in _literals(each))
    return tuple(dict.fromkeys(options))[:_MAX_LISTED]


def _decode(sent_body: Any) -> Any:
    if not isinstance(sent_body, bytes | bytearray | memoryview):
        return sent_body
    try:
        return msgspec.json.decode(sent_body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _matching_types(kind: inspect.Type, value: Any) -> Iterator[inspect.Type]:
    """Yield the alternative of ``kind`` with ``value``'s tag, else all of them."""
    kinds = list(_alternatives(kind))
    tagged_types = [
        each
        for each in kinds
        if isinstance(each, inspect.StructType)
        and isinstance(value, dict)
        and each.tag is not None
        and value.get(each.tag_field) == each.tag
    ]
    yield from tagged_types or kinds


def _step_into(value: Any, step: re.Match[str]) -> Any:
    if step["field"] is not None:
        return value.get(step["field"]) if isinstance(value, dict) else None
    item = step["item"]
    is_item = isinstance(value, list) and item.isdigit() and int(item) < len(value)
    return value[int(item)] if is_item else None


def _inner_types(kind: inspect.Type, field: str | None) -> Iterator[inspect.Type]:
    """Yield the types inside ``kind``: its field of that name, or the items of a list if ``field`` is None."""
    for each in _alternatives(kind):
        if field is None and isinstance(each, inspect.ListType):
            yield each.item_type
        elif isinstance(each, inspect.StructType):
            yield from (field_info.type for field_info in each.fields if field_info.encode_name == field)


def _tags(types: list[inspect.Type], field: str) -> Iterator[str]:
    """Yield the values of ``field`` if it is the tag of structs."""
    for kind in types:
        for each in _alternatives(kind):
            if isinstance(each, inspect.StructType) and each.tag_field == field:
                yield str(each.tag)


def _literals(kind: inspect.Type) -> Iterator[str]:
    for each in _alternatives(kind):
        if isinstance(each, inspect.LiteralType):
            yield from (value for value in each.values if isinstance(value, str))


def _alternatives(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _alternatives(each)
    elif isinstance(kind, inspect.Metadata):
        yield from _alternatives(kind.type)
    else:
        yield kind
