"""The values that a place of a request's body may hold, read from its type: errors about a wrong value list them."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from msgspec import inspect

_STEP = re.compile(r"\[(?P<item>[^\]]*)\]|\.?(?P<field>[^.\[]+)")
#: Values that an error lists at most.
_MAX_LISTED = 40


@lru_cache(1024)
def accepted_values(body: Any, path: str) -> tuple[str, ...]:
    """The strings that ``path`` (as ``messages[0].role``) may hold in a body of type ``body``; () if it is no choice
    among strings."""
    types = [inspect.type_info(body)]
    for step in _STEP.finditer(path):
        parents = types
        types = [inner for each in parents for inner in _inner_types(each, step["field"])]
        if not types:
            return tuple(dict.fromkeys(_tags(parents, step["field"] or "")))[:_MAX_LISTED]
    options = (value for each in types for value in _literals(each))
    return tuple(dict.fromkeys(options))[:_MAX_LISTED]


def _inner_types(kind: inspect.Type, field: str | None) -> Iterator[inspect.Type]:
    """Types of what lies in ``kind``: its field of that name, or the items of a list where there is none."""
    for each in _alternatives(kind):
        if field is None and isinstance(each, inspect.ListType):
            yield each.item_type
        elif isinstance(each, inspect.StructType):
            yield from (known.type for known in each.fields if known.encode_name == field)


def _tags(types: list[inspect.Type], field: str) -> Iterator[str]:
    """Values of ``field`` where it tells structs apart."""
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
