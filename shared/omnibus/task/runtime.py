"""The current runtime, which runs the tasks of an app's ``serve``."""

import asyncio
import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
)
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from itertools import count
from typing import Any, Protocol, TypeVar, TypeVarTuple, cast, overload

from omnibus.errors import PlaceholderError
from omnibus.task import purity
from omnibus.task.dynamic import run_live
from omnibus.task.record import record, replay
from omnibus.task.result import Source
from omnibus.task.session import Segment, current_session

R = TypeVar("R")
A = TypeVar("A")
Arguments = TypeVarTuple("Arguments")

#: Number of functions for which it is cached whether they are asynchronous: the check takes several microseconds.
_MAX_KNOWN_FUNCTIONS = 1024


class Runtime(Protocol):
    """Runner of recorded segments: a gateway, or an app's worker process on behalf of a gateway."""

    async def submit(self, segment: Segment, step: int) -> Mapping[tuple[int, str], Source]:
        """Send ``segment``, the ``step``-th of its request; returns the sources of its outputs."""

    def choice_point(self, site: int) -> float:
        """Return the request's point in [0, 1) for its ``site``-th choice.

        The points of many requests are evenly distributed.
        """


class MediaRuntime(Runtime, Protocol):
    """A runtime with which apps can place media."""

    async def place_media(self, data: bytes, modality: str) -> dict[str, Any]:
        """Place a file for encoders; returns its handle for calls.

        ``modality`` is ``image``, ``video`` or ``audio``; with "", it is detected from the first bytes. Raises
        ``BadMedia`` and ``TooLarge``.
        """


class _Request:
    """One request: its runtime, and the numbers of its segments, choices and equal calls."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._steps = count()
        self._sites = count()
        self.calls: dict[str, int] = {}
        self.submit = runtime.submit
        self.place_media = getattr(runtime, "place_media", None)

    def next_step(self) -> int:
        return next(self._steps)

    def choice_point(self, _: int) -> float:
        return self._runtime.choice_point(next(self._sites))


_request: ContextVar[_Request | None] = ContextVar("omnibus_request", default=None)


@contextmanager
def use(runtime: Runtime) -> Iterator[None]:
    """Run the tasks called inside on ``runtime``, as segments of one request."""
    token = _request.set(_Request(runtime))
    try:
        yield
    finally:
        _request.reset(token)


async def run(invoke: Callable[[R], A | Coroutine[Any, Any, A]], request: R) -> A:
    """Run ``invoke`` on the current runtime.

    A plain one is recorded, sent and replayed; an async one runs live.
    """
    if current_session() is not None:
        raise PlaceholderError("inside of `invoke` call a task's `.invoke(...)`, not the task itself")
    around = _request.get()
    if around is None:
        raise PlaceholderError("a task was called without a runtime: call it in an app's `serve`")
    purity.check_purity(invoke)
    if _is_coroutine_function(getattr(invoke, "__func__", invoke)):
        live = cast(Callable[[R], Awaitable[A]], invoke)
        return await run_live(around, around.choice_point, live, request)
    step = around.next_step()
    segment = record(invoke, request, around.choice_point, step, scope=around, calls=around.calls)
    return replay(invoke, request, segment, await around.submit(segment, step), step, scope=around)


@lru_cache(_MAX_KNOWN_FUNCTIONS)
def _is_coroutine_function(function: Any) -> bool:
    return inspect.iscoroutinefunction(function)


async def place_media(data: bytes, modality: str) -> dict[str, Any]:
    """Place a file on the current runtime, see ``MediaRuntime``; once per request."""
    around = _request.get()
    if around is None or around.place_media is None:
        raise PlaceholderError("place media in an app's `serve`, or in an async `invoke`")
    reference: dict[str, Any] = await tool(around.place_media, data, modality)
    return reference


@overload
async def tool(function: Callable[[*Arguments], Awaitable[A]], *arguments: *Arguments) -> A: ...
@overload
async def tool(function: Callable[[*Arguments], A], *arguments: *Arguments) -> A: ...
async def tool(function: Callable[..., Any], *arguments: Any) -> Any:  # type: ignore[misc]
    """Call ``function`` (plain or async) once per request, for calls with effects.

    When ``invoke`` runs again, the result is repeated, not the call.
    """
    effect = getattr(current_session(), "effect", None)
    if effect is not None:
        return await effect(function, arguments)
    result = function(*arguments)
    return await result if inspect.isawaitable(result) else result


async def merged(streams: Mapping[str, AsyncIterable[A]]) -> AsyncIterator[tuple[str, A]]:
    """Yield parts of several streams as they arrive, with the stream's name.

    Raises the error of a stream that fails, after its earlier parts, and stops reading the others.
    """
    news: asyncio.Queue[tuple[str, Any, bool, Exception | None]] = asyncio.Queue(maxsize=2 * len(streams) or 1)

    async def read_stream(name: str, stream: AsyncIterable[Any]) -> None:
        parts = aiter(stream)
        try:
            async for part in parts:
                await news.put((name, part, False, None))
            await news.put((name, None, True, None))
        except Exception as error:  # noqa: BLE001 - every error is raised to the reader
            await news.put((name, None, True, error))
        finally:
            if isinstance(parts, AsyncGenerator):
                await parts.aclose()

    readers = [asyncio.ensure_future(read_stream(name, stream)) for name, stream in streams.items()]
    left = len(readers)
    try:
        while left:
            name, part, last, error = await news.get()
            if error is not None:
                raise error
            left -= last
            if not last:
                yield name, part
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
