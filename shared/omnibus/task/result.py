"""Results that may not exist yet: they have a producer and type, but no value.

While a graph is recorded, a ``Result`` is a placeholder. You may pass it to other tasks and return it. Reading its
value raises ``PlaceholderError``, since ``invoke`` cannot branch on a missing value. Once its graph runs, read the
whole with ``await result``, or its parts with ``async for``.

Conversion between items (``Item``: small JSON and an array) and the values that readers get.

A pydantic model is sent as its fields; at most one of them is an array, called ``array``. A dict is sent unchanged, and
other values as ``{"value": ...}``. A dict with a key ``value`` is also wrapped, so that only wrapped values are
unwrapped.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, get_origin

import numpy as np
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from omnibus.errors import OmnibusError, PlaceholderError, ProtocolError, StageFailed, StreamConsumed
from omnibus.tensors.handle import Item

#: Field that holds a plain value.
KEY = "value"


class Part(BaseModel):
    """Base of typed stream parts. ``array`` is the field for the item's tensor."""

    model_config = {"arbitrary_types_allowed": True, "extra": "ignore"}

    if not TYPE_CHECKING:  # checkers see a class's own ``join``, and without it, awaiting a stream of it gives a list

        @classmethod
        def join(cls, parts: Sequence[Any]) -> Any:
            """Return the result of ``await``; by default the list of parts."""
            return list(parts)


def decode_part(element: Any, item: Item) -> Any:
    """Return one part of a stream of ``element``. Raises ``StageFailed`` for another type."""
    if item.array is None:
        return _validate_type(element, _unwrap_typed(element, item.data))
    if _is_model(element):
        return _validate_type(element, {**item.data, "array": item.array})
    return item.array


def join_parts(element: Any, parts: list[Any], transformed: bool) -> Any:
    """Join all parts of a stream: texts and arrays are concatenated."""
    if not transformed and isinstance(element, type) and issubclass(element, Part):
        whole: Any = element
        return whole.join(parts)
    if not parts:
        return "" if element is str and not transformed else parts
    if all(isinstance(each, str) for each in parts):
        return "".join(parts)
    if (
        all(isinstance(each, np.ndarray) and each.ndim for each in parts)
        and len({each.shape[1:] for each in parts}) == 1
    ):
        return np.concatenate(parts)
    return parts


def decode_value(element: Any, items: Sequence[Item], name: str) -> Any:
    """Return the only value of a tensor or value output."""
    if not items:
        raise ProtocolError(f"{name} ended without a value")
    return decode_part(element, items[0])


def encode_item(value: Any) -> Item:
    """Return the item for ``value``. Raises ``StageFailed`` if it cannot be JSON."""
    if isinstance(value, np.ndarray):
        return Item({}, value)
    array = getattr(value, "array", None) if isinstance(value, BaseModel) else None
    if not isinstance(array, np.ndarray):
        data = _to_json(value)
        return Item(data if isinstance(data, dict) and KEY not in data else {KEY: data})
    return Item(_to_json(value, {"array"}), array)


def unwrap_value(data: dict[str, Any]) -> Any:
    """Return the value in ``data``, whose type is unknown."""
    return data[KEY] if len(data) == 1 and KEY in data else data


def _unwrap_typed(element: Any, data: dict[str, Any]) -> Any:
    value = unwrap_value(data)
    if value is data or not (_is_model(element) or _is_dict(element)):
        return value
    return value if type(value) is dict and KEY in value else data  # engines write a model or dict unwrapped


def _to_json(value: Any, exclude: set[str] | None = None) -> Any:
    if type(value) is str:
        return value
    try:
        data = to_jsonable_python(value, exclude=exclude, fallback=_convert_number)
    except (PydanticSerializationError, ValueError, TypeError) as error:
        raise StageFailed(f"a value of type {type(value).__name__} cannot be JSON: {error}") from error
    if not _is_finite(data):
        raise StageFailed(f"a value of type {type(value).__name__} cannot be JSON: its numbers must be finite")
    return data


def _is_finite(data: Any) -> bool:
    if isinstance(data, float):
        return math.isfinite(data)
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return all(map(_is_finite, inner))


def _convert_number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot travel as JSON; an array needs an output annotated `Tensor`")


def _is_model(element: Any) -> bool:
    return isinstance(element, type) and issubclass(element, BaseModel)


def _is_dict(element: Any) -> bool:
    return element is dict or get_origin(element) is dict


def _validate_type(element: Any, value: Any) -> Any:
    if element is Any or type(value) is element:
        return value
    try:
        return type_adapter(element).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise StageFailed(
            f"a task returned a value of another type than declared: {where or 'value'} ({first['msg']})"
        ) from error


_adapters: dict[Any, TypeAdapter[Any]] = {}


def type_adapter(element: Any) -> TypeAdapter[Any]:
    """Return the validator of a type, which is cached."""
    if element not in _adapters:
        _adapters[element] = TypeAdapter(element)
    return _adapters[element]


TENSOR, STREAM, VALUE = "tensor", "stream", "value"


class Source(Protocol):
    """Source of a result's items while it arrives."""

    async def next_items(self) -> list[Item]:
        """Return all items that are ready, at least one; empty after the last. Raises the error of a failure."""


class Observation:
    """Part of a result that ``invoke`` read: its value, or its parts, and how reading ended."""

    __slots__ = ("ended", "error", "parts", "value", "whole")

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.value: Any = None
        self.parts: list[Any] = []
        self.ended = False
        self.error: Exception | None = None


class Maker(Protocol):
    """The session of a result. ``drawing`` is true while its ``invoke`` runs."""

    drawing: bool
    #: First read of a placeholder: ``invoke`` may have swallowed the error, and branched on a missing value.
    fault: OmnibusError | None
    #: The client's request; None if unknown. Results cannot be passed from one request to another.
    scope: object


class ResultOwner(Protocol):
    """The session of an ``invoke`` that runs while its graph grows."""

    def register_branch(self) -> None:
        """Register the current branch of ``invoke``, which starts to read."""

    async def ensure_source(self, result: "Result") -> None:
        """Ensure that ``result`` has a source: send the segment that contains it."""

    def record_observation(self, result: "Result", observation: Observation) -> None:
        """Record that ``invoke`` read ``observation`` of ``result``; its next calls may depend on it."""

    def earlier_observation(self, result: "Result", whole: bool) -> Observation | None:
        """Return the part of ``result`` that an earlier run of ``invoke`` read."""

    def raise_read_beyond(self, result: "Result") -> NoReturn:
        """Raise the error of reading more of ``result`` than before."""


class Result:
    """One output of one call. ``origin`` is (node, output) in segment ``step`` of the request."""

    __slots__ = (
        "_functions", "_read", "_root", "_whole", "element", "kind", "maker", "origin", "owner", "source", "step",
        "task",
    )  # fmt: skip

    def __init__(
        self,
        task: str,
        origin: tuple[int, str],
        kind: str,
        element: Any,
        maker: Maker | None = None,
        step: int = 0,
        owner: ResultOwner | None = None,
    ) -> None:
        self.task = task
        self.origin = origin
        self.kind = kind
        self.element = element
        self.maker = maker
        self.step = step
        self.source: Source | None = None
        self.owner = owner
        self._functions: tuple[Callable[[Any], Any], ...] = ()
        self._root: Result | None = None  # the result that this one transforms: both are read together, once
        self._read = False
        self._whole: asyncio.Future[Any] | None = None

    def bind(self, source: Source) -> "Result":
        self.source = source
        return self

    @property
    def transform_count(self) -> int:
        return len(self._functions)

    @property
    def is_transformed(self) -> bool:
        return bool(self._functions)

    @property
    def display_name(self) -> str:
        """Name of the result in messages."""
        return f"<{self.kind} {self.origin[1]!r} of {self.task} (node {self.origin[0]})>"

    def transform(self, function: Callable[[Any], Any]) -> "Result":
        """Return this stream with ``function`` applied to each part on reading.

        You can return or read it, but not pass it to another task, since the function runs on reading.
        """
        if self.kind != STREAM:
            raise PlaceholderError(f"{self.display_name} is not a stream: await it and use its value")
        copy = Result(self.task, self.origin, self.kind, self.element, self.maker, self.step, self.owner)
        copy._functions = (*self._functions, function)
        copy._root = self.base_result
        return copy

    @property
    def base_result(self) -> "Result":
        """Result that this one transforms, or itself: the one with a source."""
        return self if self._root is None else self._root

    # Reading

    def claim_source(self) -> Source | None:
        """Return its source for another reader. Raises ``StreamConsumed`` if it was read."""
        self._mark_read()
        return self.base_result.source

    def _mark_read(self) -> None:
        if self.base_result._read:
            raise StreamConsumed(
                f"{self.display_name} was read already. A stream can be read once: keep its parts, or await it once"
            )
        self.base_result._read = True

    def __await__(self) -> Generator[Any, None, Any]:
        return self._await_value().__await__()

    async def _await_value(self) -> Any:
        if self.owner is not None:
            self.owner.register_branch()
        if self._whole is None:
            self._mark_read()
            self._whole = asyncio.ensure_future(self._read_value())
            self._whole.add_done_callback(_ignore_failure)
        return await asyncio.shield(self._whole)

    async def _read_value(self) -> Any:
        observation = Observation(whole=True)
        try:
            observation.value = await self._replay_or_read()
        except Exception as error:
            observation.error = error
            self._record_observation(observation)
            raise
        self._record_observation(observation)
        return observation.value

    def _record_observation(self, observation: Observation) -> None:
        if self.owner is not None:
            self.owner.record_observation(self, observation)

    async def _replay_or_read(self) -> Any:
        before = self.owner.earlier_observation(self, whole=True) if self.owner is not None else None
        if before is not None:
            if before.error is not None:
                raise before.error
            return before.value
        items = [item async for item in self._iterate_items()]
        if self.kind != STREAM:
            return decode_value(self.element, items, self.display_name)
        return join_parts(
            self.element,
            [self._apply_transforms(decode_part(self.element, item)) for item in items],
            self.is_transformed,
        )

    def __aiter__(self) -> AsyncIterator[Any]:
        if self.kind != STREAM:
            raise PlaceholderError(f"{self.display_name} is not a stream: await it")
        self._mark_read()
        if self.owner is not None:
            self.owner.register_branch()
        return self._iterate_parts()

    async def _iterate_parts(self) -> AsyncIterator[Any]:
        before = self.owner.earlier_observation(self, whole=False) if self.owner is not None else None
        if before is not None:
            for value in before.parts:
                yield value
            if before.error is not None:
                raise before.error
            if not before.ended and self.owner is not None:
                self.owner.raise_read_beyond(self)
            return
        observation = Observation(whole=False)  # grows during reading
        self._record_observation(observation)
        try:
            async for item in self._iterate_items():
                value = self._apply_transforms(decode_part(self.element, item))
                observation.parts.append(value)
                yield value
            observation.ended = True
        except Exception as error:
            observation.error = error
            raise

    async def _iterate_items(self) -> AsyncIterator[Item]:
        if self.owner is not None:
            await self.owner.ensure_source(self.base_result)
        source = self.base_result.source
        if source is None:
            self._raise_placeholder_error()
        while items := await source.next_items():
            for item in items:
                yield item

    def _apply_transforms(self, value: Any) -> Any:
        for function in self._functions:
            value = function(value)
        return value

    # Rejected operations

    def __repr__(self) -> str:
        if self.maker is not None and self.maker.drawing:  # f"{[result]}" would put it into a prompt
            raise PlaceholderError(self._usage_advice())
        return self.display_name

    def _usage_advice(self) -> str:
        if self.base_result.source is not None:
            return f"{self.display_name} must be read first: `await` it, or iterate with `async for`"
        return (
            f"{self.display_name} has no value while the graph is recorded: pass it to another task or return it. "
            "To branch on it, make `invoke` async and `await` it, or branch in the app's `serve`, where results have "
            "values"
        )

    def _raise_placeholder_error(self, *_: Any) -> NoReturn:
        error = PlaceholderError(self._usage_advice())
        if self.maker is not None and self.maker.fault is None:
            self.maker.fault = error
        raise error

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no {name!r} here: {self._usage_advice()}", name=name, obj=self)

    def _return_self(self, *_: Any) -> "Result":
        return self

    __copy__ = __deepcopy__ = _return_self
    __bool__ = __len__ = __str__ = __iter__ = __format__ = __contains__ = __getitem__ = _raise_placeholder_error
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __int__ = __float__ = __index__ = __round__ = (
        _raise_placeholder_error
    )
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = (
        _raise_placeholder_error
    )
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = (
        _raise_placeholder_error
    )
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = __abs__ = __pos__ = (
        _raise_placeholder_error
    )
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __divmod__ = __rdivmod__ = __trunc__ = (
        _raise_placeholder_error
    )
    __floor__ = __ceil__ = __bytes__ = __complex__ = __next__ = __reversed__ = __enter__ = __reduce__ = (
        _raise_placeholder_error
    )
    __array__ = __fspath__ = __setitem__ = __delitem__ = __call__ = _raise_placeholder_error
    __hash__ = object.__hash__


def _ignore_failure(future: "asyncio.Future[Any]") -> None:
    """Retrieve the exception, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()
