"""Encoding of a call's inputs: JSON, references to other calls, marks for earlier segments.

Holes: open literals of a recorded graph, which ``invoke`` cannot read.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any, NoReturn

import msgspec
import numpy as np
from pydantic import BaseModel, RootModel

from omnibus.errors import BadRequest, PlaceholderError
from omnibus.graph import HANDLE, REF, make_ref
from omnibus.task.result import STREAM, Maker, Result
from omnibus.task.session import current_session

_OF_RESULTS = {name for name, method in vars(Result).items() if method is vars(Result)["_raise_placeholder_error"]} - {
    "_raise_placeholder_error"
}
#: Operations that a result rejects, and others that would reveal a hole.
_REFUSED = _OF_RESULTS | {"__hash__", "__repr__", "__getattribute__", "__setattr__", "__delattr__"}


class Hole:
    """Placeholder for a literal that differs between requests. It can only be passed to a task."""

    __slots__ = ()


def _raise_hole_error(*_: Any) -> NoReturn:
    error = PlaceholderError("`invoke` reads a literal of its request, so requests of one kind may have other graphs")
    session = current_session()
    raise error if session is None else session.remember_error(error)


for _name in _REFUSED:
    setattr(Hole, _name, _raise_hole_error)


#: Literal that the runtime fills in: a tensor or value of an earlier segment, [step, node, output].
FROM = "$from"

#: Returns the JSON for a result in a call's inputs, and adds references to the list.
Refer = Callable[[Result, list[tuple[int, str]]], Any]

#: Types that are their own JSON. ``Raw`` is encoded JSON without placeholders. A hole cannot be read.
_ATOMS = frozenset({str, int, bool, type(None), msgspec.Raw, Hole})


def encode_literal(value: Any, refer: Refer, uses: list[tuple[int, str]]) -> Any:
    """Encode a literal as JSON values; ``refer`` returns the JSON for each result in it.

    Raises ``BadRequest`` for values without JSON, and for the keys of references. A request's own JSON must not become
    an edge of a graph.
    """
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is Result:
        return refer(value, uses)
    if kind is dict:
        if FROM in value or (REF in value and type(value[REF]) is not str):  # a text is that of a JSON schema
            raise BadRequest(f"an input cannot contain the keys {REF!r} and {FROM!r}: they mark results of other calls")
        if HANDLE in value and type(value[HANDLE]) is dict:
            return value  # a medium from the gateway: JSON already, and the gateway checks that it placed it
        return {key: encode_literal(element, refer, uses) for key, element in value.items()}
    if kind is list or kind is tuple:
        return [encode_literal(element, refer, uses) for element in value]
    return _encode_other(value, refer, uses)


def _encode_other(value: Any, refer: Refer, uses: list[tuple[int, str]]) -> Any:
    """Encode other types: models, subclasses of dict and list, numbers of numpy, dates."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadRequest(f"an input cannot be {value}: JSON only has finite numbers")
        return float(value)
    if isinstance(value, RootModel):
        return encode_literal(value.root, refer, uses)
    if isinstance(value, BaseModel):
        value = {**{name: getattr(value, name) for name in type(value).model_fields}, **(value.model_extra or {})}
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return encode_literal(dict(value), refer, uses)
    if isinstance(value, list | tuple):
        return [encode_literal(element, refer, uses) for element in value]
    if isinstance(value, np.generic):
        return encode_literal(value.item(), refer, uses)
    if isinstance(value, np.ndarray | bytes | bytearray | memoryview):
        raise BadRequest(
            f"an input cannot be a literal {type(value).__name__}: pass the result that it comes from, or text or "
            "numbers as JSON"
        )
    return encode_literal(msgspec.to_builtins(value), refer, uses)


def make_reference(result: Result, uses: list[tuple[int, str]], maker: Maker) -> Any:
    """Return a reference within ``maker``'s graph, added to ``uses``.

    For a result of an earlier graph, return a mark.
    """
    if result.is_transformed:
        raise PlaceholderError(
            f"{result.display_name} is transformed where it is read: return it, or await it and pass its value"
        )
    if result.maker is maker:
        uses.append(result.origin)
        return make_ref(*result.origin)
    if result.maker is None or maker.scope is None or result.maker.scope is not maker.scope:
        raise PlaceholderError(f"{result.display_name} belongs to another graph: await it first and pass its value")
    if result.kind == STREAM:
        raise PlaceholderError(f"{result.display_name} is a stream of another graph: await it first and pass its value")
    if result.source is None:
        raise PlaceholderError(
            f"{result.display_name} was not kept, as its `invoke` did not return it: return it as well"
        )
    return {FROM: [result.step, *result.origin]}


def returned_results(answer: Any) -> list[Result]:
    """Return the results anywhere in an ``invoke``'s answer, in order."""
    results: list[Result] = []
    _collect_results(answer, results, set())
    return results


def _collect_results(value: Any, results: list[Result], visited_ids: set[int]) -> None:
    if type(value) is Result:
        results.append(value)
        return
    elements = _child_values(value)
    if elements is None or id(value) in visited_ids:
        return
    visited_ids.add(id(value))
    for element in elements:
        if element is not None:
            _collect_results(element, results, visited_ids)


def _child_values(value: Any) -> Iterable[Any] | None:
    """Return the elements of ``value``, or None if it has none."""
    if isinstance(value, BaseModel):
        return [*value.__dict__.values(), *value.model_extra.values()] if value.model_extra else value.__dict__.values()
    if value is None or isinstance(value, str | int | float | bytes | np.ndarray | type | ModuleType):
        return None
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple | Set):
        return value
    if isinstance(value, msgspec.Struct):
        return [getattr(value, name) for name in value.__struct_fields__]
    return [*getattr(value, "__dict__", {}).values(), *_slot_values(value)]


def _slot_values(value: Any) -> list[Any]:
    slot_groups = (kind.__dict__.get("__slots__", ()) for kind in type(value).__mro__)
    names = [name for slots in slot_groups for name in ([slots] if isinstance(slots, str) else slots)]
    return [getattr(value, name) for name in names if hasattr(value, name)]
