"""The current runtime, which runs the tasks that are called in an app's ``serve``."""

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

#: Functions of which is remembered whether they are asynchronous: to look takes several microseconds.
_MAX_KNOWN_FUNCTIONS = 1024


class Runtime(Protocol):
    """Runner of recorded segments: a gateway, or the worker process of an app on behalf of one."""

    async def submit(self, segment: Segment, step: int) -> Mapping[tuple[int, str], Source]:
        """Send ``segment``, the ``step``-th of its request, on its way; returns where its outputs arrive."""

    def choice_point(self, site: int) -> float:
        """Return the point in [0, 1) of this request for its ``site``-th choice: evenly spread over many requests."""


class MediaRuntime(Runtime, Protocol):
    """A runtime on which apps place media of their own."""

    async def place_media(self, data: bytes, modality: str) -> dict[str, Any]:
        """Put a file where encoders read it; returns what names it in calls.

        ``modality`` is ``image``, ``video`` or ``audio``; "" leaves it to the file's first bytes. Raises ``BadMedia``
        and ``TooLarge``.
        """


class _Request:
    """One request: its runtime, how many segments and choices it has made, and how often each call."""

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
    """Tasks that are called inside run on ``runtime``, as segments of one request."""
    token = _request.set(_Request(runtime))
    try:
        yield
    finally:
        _request.reset(token)


async def run(invoke: Callable[[R], A | Coroutine[Any, Any, A]], request: R) -> A:
    """Run ``invoke`` on the current runtime: record, send and replay, or live when it is async."""
    if current_session() is not None:
        raise PlaceholderError("inside of `invoke` call a task's `.invoke(...)`, not the task itself")
    around = _request.get()
    if around is None:
        raise PlaceholderError("a task was called where nothing runs it: call it in an app's `serve`")
    purity.check_purity(invoke)
    if _is_coroutine_function(getattr(invoke, "__func__", invoke)):
        live = cast(Callable[[R], Awaitable[A]], invoke)
        return await run_live(around, around.choice_point, live, request)
    step = around.next_step()
    recorded = record(invoke, request, around.choice_point, step, scope=around, calls=around.calls)
    return replay(invoke, request, recorded, await around.submit(recorded, step), step, scope=around)


@lru_cache(_MAX_KNOWN_FUNCTIONS)
def _is_coroutine_function(function: Any) -> bool:
    return inspect.iscoroutinefunction(function)


async def place_media(data: bytes, modality: str) -> dict[str, Any]:
    """Place a file on the current runtime, see ``MediaRuntime``; once in the life of a request."""
    around = _request.get()
    if around is None or around.place_media is None:
        raise PlaceholderError("media are placed in an app's `serve`, or in an async `invoke`")
    placed: dict[str, Any] = await tool(around.place_media, data, modality)
    return placed


@overload
async def tool(function: Callable[[*Arguments], Awaitable[A]], *arguments: *Arguments) -> A: ...
@overload
async def tool(function: Callable[[*Arguments], A], *arguments: *Arguments) -> A: ...
async def tool(function: Callable[..., Any], *arguments: Any) -> Any:  # type: ignore[misc]
    """Call ``function`` (plain or async) once in the life of a request: what has effects belongs in here.

    When ``invoke`` runs again, the result is repeated and not the call.
    """
    effect = getattr(current_session(), "effect", None)
    if effect is not None:
        return await effect(function, arguments)
    result = function(*arguments)
    return await result if inspect.isawaitable(result) else result


async def merged(streams: Mapping[str, AsyncIterable[A]]) -> AsyncIterator[tuple[str, A]]:
    """Parts of several streams as they come, each with its stream's name.

    Raises what makes one of them fail, after what it gave before, and stops reading the others.
    """
    news: asyncio.Queue[tuple[str, Any, bool, Exception | None]] = asyncio.Queue(maxsize=2 * len(streams) or 1)

    async def read_stream(name: str, stream: AsyncIterable[Any]) -> None:
        parts = aiter(stream)
        try:
            async for part in parts:
                await news.put((name, part, False, None))
            await news.put((name, None, True, None))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised to who reads
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
