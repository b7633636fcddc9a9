"""Results that may not exist yet: they carry their producer and type, and refuse to be looked at.

While a graph is recorded a ``Result`` is a placeholder. It may be passed to other tasks and returned.
Looking at it raises ``PlaceholderError``, because whatever ``invoke`` decided on it would be decided on
nothing. Once its graph runs it is read: ``await result`` for the whole, ``async for`` for the parts.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, NoReturn, Protocol

from omnibus.errors import OmnibusError, PlaceholderError, StreamConsumed
from omnibus.task.item_codec import join, part, whole
from omnibus.tensors.item import Item

TENSOR, STREAM, VALUE = "tensor", "stream", "value"


class Source(Protocol):
    """Source of a result's items while it arrives."""

    async def next(self) -> list[Item]:
        """All items that are ready, at least one; empty after the last. Raises what made it fail."""


class Seen:
    """Part of a result that ``invoke`` saw: its value, or its parts until it stopped reading, and how that ended."""

    __slots__ = ("ended", "error", "parts", "value", "whole")

    def __init__(self, whole: bool) -> None:
        self.whole = whole
        self.value: Any = None
        self.parts: list[Any] = []
        self.ended = False
        self.error: Exception | None = None


class Maker(Protocol):
    """The session that a result belongs to. ``drawing``: its ``invoke`` runs just now."""

    drawing: bool
    #: The first look at a placeholder: ``invoke`` may have swallowed the error, and decided on nothing.
    fault: OmnibusError | None
    #: The client's request, None when there is no telling; results do not pass from one to another.
    scope: object


class Owner(Protocol):
    """The session of an ``invoke`` that runs while its graph grows."""

    def touched(self) -> None:
        """A branch of ``invoke`` that runs beside others begins to read."""

    async def bound(self, result: "Result") -> None:
        """Make sure that ``result`` has a source, by sending off what was recorded so far."""

    def observed(self, result: "Result", seen: Seen) -> None:
        """``invoke`` has seen this much; what follows may depend on it."""

    def look(self, result: "Result", whole: bool) -> Seen | None:
        """Return what an earlier run of ``invoke`` saw of ``result``."""

    def beyond(self, result: "Result") -> NoReturn:
        """``invoke`` reads more of ``result`` than the earlier run."""


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
        owner: Owner | None = None,
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
        self._root: Result | None = None  # what this is a transform of: both share one reading
        self._read = False
        self._whole: asyncio.Future[Any] | None = None

    def bind(self, source: Source) -> "Result":
        self.source = source
        return self

    @property
    def transforms(self) -> int:
        return len(self._functions)

    @property
    def transformed(self) -> bool:
        return bool(self._functions)

    @property
    def shown(self) -> str:
        """Name of the result in messages."""
        return f"<{self.kind} {self.origin[1]!r} of {self.task} (node {self.origin[0]})>"

    def transform(self, function: Callable[[Any], Any]) -> "Result":
        """This stream with ``function`` applied to each part where it is read.

        It can be returned or read, but not passed to another task: its parts never leave the reader.
        """
        if self.kind != STREAM:
            raise PlaceholderError(f"{self.shown} is no stream: await it and work on its value")
        copy = Result(self.task, self.origin, self.kind, self.element, self.maker, self.step, self.owner)
        copy._functions = (*self._functions, function)
        copy._root = self.base
        return copy

    @property
    def base(self) -> "Result":
        """Result that this one is a transform of, or itself: the one that has a source."""
        return self if self._root is None else self._root

    # Reading

    def claim(self) -> Source | None:
        """Its source, for who reads it in place of this one. Raises ``StreamConsumed`` when it was read."""
        self._consume()
        return self.base.source

    def _consume(self) -> None:
        if self.base._read:
            raise StreamConsumed(
                f"{self.shown} was read already: a stream is read once; keep its parts, or await it once"
            )
        self.base._read = True

    def __await__(self) -> Generator[Any, None, Any]:
        return self._collect().__await__()

    async def _collect(self) -> Any:
        if self.owner is not None:
            self.owner.touched()
        if self._whole is None:
            self._consume()
            self._whole = asyncio.ensure_future(self._gather())
            self._whole.add_done_callback(_retrieved)
        return await asyncio.shield(self._whole)

    async def _gather(self) -> Any:
        seen = Seen(whole=True)
        try:
            seen.value = await self._all()
        except Exception as error:
            seen.error = error
            self._tell(seen)
            raise
        self._tell(seen)
        return seen.value

    def _tell(self, seen: Seen) -> None:
        if self.owner is not None:
            self.owner.observed(self, seen)

    async def _all(self) -> Any:
        before = self.owner.look(self, whole=True) if self.owner is not None else None
        if before is not None:
            if before.error is not None:
                raise before.error
            return before.value
        items = [item async for item in self._items()]
        if self.kind != STREAM:
            return whole(self.element, items, self.shown)
        return join(self.element, [self._apply(part(self.element, item)) for item in items], self.transformed)

    def __aiter__(self) -> AsyncIterator[Any]:
        if self.kind != STREAM:
            raise PlaceholderError(f"{self.shown} is no stream: await it")
        self._consume()
        if self.owner is not None:
            self.owner.touched()
        return self._parts()

    async def _parts(self) -> AsyncIterator[Any]:
        before = self.owner.look(self, whole=False) if self.owner is not None else None
        if before is not None:
            for value in before.parts:
                yield value
            if before.error is not None:
                raise before.error
            if not before.ended and self.owner is not None:
                self.owner.beyond(self)
            return
        seen = Seen(whole=False)  # grows while it is read
        self._tell(seen)
        try:
            async for item in self._items():
                value = self._apply(part(self.element, item))
                seen.parts.append(value)
                yield value
            seen.ended = True
        except Exception as error:
            seen.error = error
            raise

    async def _items(self) -> AsyncIterator[Item]:
        if self.owner is not None:
            await self.owner.bound(self.base)
        source = self.base.source
        if source is None:
            self._refuse()
        while items := await source.next():
            for item in items:
                yield item

    def _apply(self, value: Any) -> Any:
        for function in self._functions:
            value = function(value)
        return value

    # Refusing

    def __repr__(self) -> str:
        if self.maker is not None and self.maker.drawing:  # f"{[result]}" would put it into a prompt
            raise PlaceholderError(self._advice())
        return self.shown

    def _advice(self) -> str:
        if self.base.source is not None:
            return f"{self.shown} has to be read first: `await` it, or iterate with `async for`"
        return (
            f"{self.shown} has no value while the graph is recorded: pass it to another task or return it. To decide "
            "on it, make `invoke` async and `await` it, or decide in the app's `serve`, where results are real"
        )

    def _refuse(self, *_: Any) -> NoReturn:
        error = PlaceholderError(self._advice())
        if self.maker is not None and self.maker.fault is None:
            self.maker.fault = error
        raise error

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no {name!r} here: {self._advice()}", name=name, obj=self)

    def _same(self, *_: Any) -> "Result":
        return self

    __copy__ = __deepcopy__ = _same
    __bool__ = __len__ = __str__ = __iter__ = __format__ = __contains__ = __getitem__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __int__ = __float__ = __index__ = __round__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _refuse
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = __abs__ = __pos__ = _refuse
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __divmod__ = __rdivmod__ = __trunc__ = _refuse
    __floor__ = __ceil__ = __bytes__ = __complex__ = __next__ = __reversed__ = __enter__ = __reduce__ = _refuse
    __array__ = __fspath__ = __setitem__ = __delitem__ = __call__ = _refuse
    __hash__ = object.__hash__


def _retrieved(done: "asyncio.Future[Any]") -> None:
    """A failure that nobody waits for any more needs no log."""
    if not done.cancelled():
        done.exception()
