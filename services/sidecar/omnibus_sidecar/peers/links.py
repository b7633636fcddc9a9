"""Pools of data connections to one other node."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

#: Pulls up to this size have a separate connection, so that they never wait for large ones.
SMALL_BYTES = 256 << 10


class Link(Protocol):
    """A data connection."""

    def abort(self) -> None: ...


LinkT = TypeVar("LinkT", bound=Link)


class LinkPool(Generic[LinkT]):
    """At most ``limit`` data connections to one peer, with one transfer each."""

    def __init__(self, limit: int, dial: Callable[[], Awaitable[LinkT]]) -> None:
        self._limit = limit
        self._dial = dial
        self._open = 0
        self._idle: list[LinkT] = []
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self, fresh: bool = False) -> LinkT:
        """Return a connection for one transfer; a new one if ``fresh``."""
        while self._open >= self._limit and (fresh or not self._idle):
            if fresh and self._idle:
                self.discard(self._idle.pop())
                continue
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._wake_next()
                raise
            finally:
                if turn in self._waiting:
                    self._waiting.remove(turn)
        if self._idle and not fresh:
            return self._idle.pop()
        self._open += 1
        try:
            return await self._dial()
        except BaseException:
            self._open -= 1
            self._wake_next()
            raise

    def release(self, link: LinkT) -> None:
        """Return a connection after its transfer; it can be used again."""
        self._idle.append(link)
        self._wake_next()

    def discard(self, link: LinkT) -> None:
        """Close a connection in the middle of a transfer."""
        link.abort()
        self._open -= 1
        self._wake_next()

    def close_idle(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self.discard(self._idle.pop())

    def _wake_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
