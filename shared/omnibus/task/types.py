"""Inputs and outputs of unit tasks: values, tensors and streams, as annotations for pydantic.

class Letters(TaskOutput):
    letters: Stream[str]         # chunk by chunk
    image: Tensor                # an array in the arena
    count: Value[int]            # small JSON
    states: OnDemand[Tensor]     # made only if another task or the client reads it

For type checkers, the type depends on the place. As an output of a call it is a result, to be read with ``await`` or
``async for``. As an input inside of a task's own ``run`` it is the array, the parts or the value.
"""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Sequence
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    Protocol,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    overload,
)

import numpy as np
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError, ValidationInfo, field_validator
from pydantic_core import CoreSchema, core_schema

from omnibus.task.result import STREAM, TENSOR, VALUE, Result

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
Whole_co = TypeVar("Whole_co", covariant=True)
#: Marks outputs that are made only if they are read, e.g. hidden states for a talker.
ON_DEMAND = "on demand"
OnDemand = Annotated[T, ON_DEMAND]


class Tensor:
    """Annotation of an array. As an input, it accepts a tensor output of another task."""

    if TYPE_CHECKING:  # operations on its results

        def __await__(self) -> Generator[Any, None, np.ndarray]: ...
        @overload
        def __get__(self, instance: "TaskInput", owner: Any) -> np.ndarray: ...
        @overload
        def __get__(self, instance: object, owner: Any) -> Self: ...
        def __get__(self, instance: object, owner: Any) -> Any: ...
        def __set__(self, instance: Any, value: "Tensor | np.ndarray") -> None: ...

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(_validate_tensor)


class Stream(Generic[T_co]):
    """Annotation of a stream of ``T``: a pydantic model, plain JSON, or ``Tensor``.

    As an input, it accepts a stream output of another task, of the same ``T``. ``async for`` reads its parts. ``await``
    reads all of them: texts and arrays are concatenated, parts with ``T.join`` are joined by it, and others are a list.
    """

    if TYPE_CHECKING:
        # mypy skips the third one, because it does not bind type variables through a protocol.
        @overload
        def __await__(self: "Stream[TextParts]") -> Generator[Any, None, str]: ...  # type: ignore[overload-overlap]
        @overload
        def __await__(self: "Stream[UniformParts]") -> Generator[Any, None, T_co]: ...  # type: ignore[overload-overlap]
        @overload
        def __await__(self: "Stream[Joinable[U]]") -> Generator[Any, None, U]: ...  # type: ignore[overload-overlap]
        @overload
        def __await__(self: "Stream[Joinable[Any]]") -> Generator[Any, None, Any]: ...
        @overload
        def __await__(self: "Stream[Tensor]") -> Generator[Any, None, np.ndarray]: ...  # type: ignore[overload-overlap]
        @overload
        def __await__(self) -> Generator[Any, None, list[T_co]]: ...
        def __await__(self) -> Generator[Any, None, Any]: ...
        @overload
        def __aiter__(self: "Stream[Tensor]") -> AsyncIterator[np.ndarray]: ...
        @overload
        def __aiter__(self) -> AsyncIterator[T_co]: ...
        def __aiter__(self) -> AsyncIterator[Any]: ...
        @overload
        def __get__(self: "Stream[Tensor]", instance: "TaskInput", owner: Any) -> "StreamParts[np.ndarray]": ...
        @overload
        def __get__(self, instance: "TaskInput", owner: Any) -> "StreamParts[T_co]": ...
        @overload
        def __get__(self, instance: object, owner: Any) -> Self: ...
        def __get__(self, instance: object, owner: Any) -> Any: ...
        def __set__(
            self, instance: Any, value: "Stream[T_co] | Iterable[T_co] | AsyncIterable[T_co] | Iterable[np.ndarray]"
        ) -> None: ...
        @overload
        def transform(self: "Stream[Tensor]", function: Callable[[np.ndarray], U]) -> "TransformedStream[U]": ...
        @overload
        def transform(self, function: Callable[[T_co], U]) -> "TransformedStream[U]": ...
        def transform(self, function: Callable[[Any], Any]) -> "TransformedStream[Any]":
            """Return this stream with ``function`` applied to each part on reading."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        element = (get_args(source) or (Any,))[0]
        return core_schema.no_info_plain_validator_function(lambda value: _validate_stream(value, element))


if TYPE_CHECKING:

    class Joinable(Protocol[Whole_co]):
        """A part whose class joins parts to a whole, as ``Part.join``."""

        def join(self, parts: Any, /) -> Whole_co: ...

    class TextParts(Protocol):
        """A part whose class joins parts to text, as ``str`` does."""

        def join(self, parts: Any, /) -> str: ...

    class UniformParts(Protocol):
        """A part whose class joins parts to its own type."""

        def join(self, parts: Any, /) -> Self: ...

    class TransformedStream(Stream[T_co]):
        """A stream whose parts are changed on reading."""

        @overload
        def __await__(self: "TransformedStream[str]") -> Generator[Any, None, str]: ...  # type: ignore[overload-overlap]
        @overload
        def __await__(self: "TransformedStream[np.ndarray]") -> Generator[Any, None, np.ndarray]: ...  # type: ignore[overload-overlap]
        @overload
        def __await__(self) -> Generator[Any, None, list[T_co]]: ...
        def __await__(self) -> Generator[Any, None, Any]: ...

    class StreamParts(list[T], AsyncIterator[T]):
        """A stream inside of ``run``: an async iterator, or a list for a plain function."""

    class Value(Generic[T_co]):
        """Annotation of small JSON of type ``T``. As an input, it also accepts a value output of another task."""

        def __await__(self) -> Generator[Any, None, T_co]: ...
        @overload
        def __get__(self, instance: "TaskInput", owner: Any) -> T_co: ...
        @overload
        def __get__(self, instance: object, owner: Any) -> Self: ...
        def __get__(self, instance: object, owner: Any) -> Any: ...
        def __set__(self, instance: Any, value: "T_co | Value[T_co]") -> None: ...

    class Tensors:
        """Annotation of a list of arrays. As an input, it accepts tensor outputs of other tasks."""

        @overload
        def __get__(self, instance: "TaskInput", owner: Any) -> list[np.ndarray]: ...
        @overload
        def __get__(self, instance: object, owner: Any) -> list[Tensor]: ...
        def __get__(self, instance: object, owner: Any) -> Any: ...
        def __set__(self, instance: Any, value: Sequence[Tensor]) -> None: ...

else:
    Value = Annotated[T, VALUE]
    Tensors = list[Tensor]


def _validate_tensor(value: Any) -> Any:
    if type(value) is Result and value.kind == TENSOR:
        return value
    raise ValueError(
        f"a tensor output of another task is needed here, not {_describe_value(value)}: pass the result itself, unread"
    )


def _validate_stream(value: Any, element: Any) -> Any:
    if type(value) is not Result or value.kind != STREAM:
        raise ValueError(
            f"a stream output of another task is needed here, not {_describe_value(value)}: pass the result itself, "
            "unread"
        )
    if value.is_transformed:
        raise ValueError(f"{value.display_name} is transformed where it is read: pass the stream itself, or await it")
    if element is Any or value.element is Any or value.element == element:
        return value
    raise ValueError(
        f"a stream of {_type_name(element)} is needed here, and {value.display_name} is one of "
        f"{_type_name(value.element)}: put a task between them that makes one of the other"
    )


def _describe_value(value: Any) -> str:
    return value.display_name if type(value) is Result else f"a value of type {type(value).__name__}"


def _type_name(element: Any) -> str:
    return getattr(element, "__name__", str(element))


class TaskInput(BaseModel):
    """Typed and validated input of a unit task. Plain fields also accept a value output of another task."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    #: Name to (kind, element), from the annotations.
    fields: ClassVar[dict[str, tuple[str, Any]]] = {}
    #: Fields for which None has a meaning: their default is another value, or they are streams.
    told: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        cls.fields = {name: kind_of(field.annotation) for name, field in cls.model_fields.items()}
        for name, (kind, element) in cls.fields.items():
            if kind == VALUE and _mentions_type(element, Stream):
                raise TypeError(f"{cls.__name__}.{name}: a stream needs its own field, annotated `Stream[...]`")
        declared_fields = cls.model_fields.items()
        cls.told = frozenset(
            name for name, field in declared_fields if field.default is not None or cls.fields[name][0] == STREAM
        )

    @field_validator("*", mode="wrap")
    @classmethod
    def _not_yet(cls, value: Any, check: Any, info: ValidationInfo) -> Any:
        if type(value) is Result:
            return _check_result(value, check, *cls.fields[str(info.field_name)])
        try:
            return check(value)
        except ValidationError as error:
            if (
                _holds_result(value)
                and error.errors(include_url=False, include_input=False)[0]["type"] != "value_error"
            ):
                raise ValueError(
                    "a result needs its own field, or a list or dict annotated with `Any` or `Tensor`. Change the "
                    "annotation, or await the result in an async `invoke` and pass its value"
                ) from None
            raise


def _check_result(result: Result, check: Any, kind: str, element: Any) -> Any:
    """Check that the result fits the kind of its field."""
    if kind != VALUE:
        return check(result)
    if result.kind == VALUE or (result.kind == TENSOR and element is Any):
        return result
    if result.kind == TENSOR and _mentions_type(element, Tensor):
        return check(result)
    target = "Tensor" if result.kind == TENSOR else f"Stream[{_type_name(result.element)}]"
    raise ValueError(
        f"a plain value is needed here, not {result.display_name}: annotate the field `{target}`, or await the result "
        "in an async `invoke` and pass its value"
    )


def _holds_result(value: Any) -> bool:
    if isinstance(value, list | tuple | set):
        return any(_holds_result(element) for element in value)
    return (
        any(_holds_result(element) for element in value.values()) if isinstance(value, dict) else type(value) is Result
    )


class TaskOutput(BaseModel):
    """Outputs of a unit task: one field each, annotated ``Tensor``, ``Stream[...]`` or with a plain type.

    A task with its own ``run`` returns one with arrays for tensors, and lists or async iterators for streams.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    #: Name to (kind, element, on demand), from the annotations.
    fields: ClassVar[dict[str, tuple[str, Any, bool]]] = {}
    #: (name, kind, element) of each.
    told: ClassVar[tuple[tuple[str, str, Any], ...]] = ()

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        declared_fields = cls.model_fields.items()
        cls.fields = {
            name: (*kind_of(field.annotation), ON_DEMAND in field.metadata) for name, field in declared_fields
        }
        cls.told = tuple((name, kind, element) for name, (kind, element, _) in cls.fields.items())
        for name, kind, element in cls.told:
            if kind == VALUE and _mentions_type(element, Tensor, Stream):
                raise TypeError(f"{cls.__name__}.{name}: an output is one `Tensor`, one `Stream[...]`, or plain values")

    @field_validator("*", mode="wrap")
    @classmethod
    def _validate_output(cls, value: Any, check: Any, info: ValidationInfo) -> Any:
        kind, element, _ = cls.fields[str(info.field_name)]
        if value is None or (kind == VALUE and type(value) is not Result):
            return check(value)
        if type(value) is Result:
            fits = value.kind == kind or element is Any
        elif kind == TENSOR:
            fits = hasattr(value, "__array__") or isinstance(value, list | int | float)
        else:
            fits = hasattr(value, "__aiter__") or isinstance(value, list | tuple)
        if fits:
            return value
        target = "an array" if kind == TENSOR else "a plain value" if kind == VALUE else "a list or an async iterator"
        raise ValueError(f"{target} is needed here, not {_describe_value(value)}")

    @classmethod
    def of(cls, values: dict[str, Any]) -> Any:
        """Return an instance with results, which are validated on reading."""
        instance = cls.__new__(cls)
        object.__setattr__(instance, "__dict__", values)
        object.__setattr__(instance, "__pydantic_fields_set__", cls.fields.keys())
        object.__setattr__(instance, "__pydantic_extra__", None)
        object.__setattr__(instance, "__pydantic_private__", None)
        return instance

    if not TYPE_CHECKING:  # a checker would accept any name as an output

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                return super().__getattr__(name)
            raise AttributeError(f"{type(self).__name__} has no output {name!r}; it has {', '.join(self.fields)}")


def kind_of(annotation: Any) -> tuple[str, Any]:
    """Return (kind, element) of an annotation. ``Tensor | None`` is an optional tensor."""
    if get_origin(annotation) in (Union, UnionType):
        inner_types = [each for each in get_args(annotation) if each is not type(None)]
        inner = kind_of(inner_types[0])
        return inner if len(inner_types) == 1 and inner[0] != VALUE else (VALUE, annotation)
    if annotation is Tensor:
        return TENSOR, Tensor
    if annotation is Stream or get_origin(annotation) is Stream:
        return STREAM, (get_args(annotation) or (Any,))[0]
    return VALUE, annotation


def _mentions_type(annotation: Any, *kinds: Any) -> bool:
    if annotation in kinds or get_origin(annotation) in kinds:
        return True
    return any(_mentions_type(each, *kinds) for each in get_args(annotation))
