"""Restarts of what ends: the loop, the pauses in it, and the limit at which it counts as what cannot run."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

Life = TypeVar("Life")


@dataclass(frozen=True)
class RestartPolicy:
    """Pauses of ``first`` times ``factor`` per restart, ``longest`` at most. Times are in seconds.

    After a life of ``healthy`` pauses begin anew. What has not served yet may be restarted ``limit`` times
    within ``window``. Each pause is shorter by a random share of up to ``jitter``: what ended together does not
    start together.
    """

    first: float = 0.1
    factor: float = 2.0
    longest: float = 30.0
    healthy: float = 10.0
    limit: int = 5
    window: float = 60.0
    jitter: float = 0.1


class Backoff:
    """The restarts of one process."""

    def __init__(self, policy: RestartPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._restarts: deque[float] = deque()
        self._streak = 0

    @property
    def exhausted(self) -> bool:
        """There were more restarts within the window than are allowed before a process has served."""
        return len(self._restarts) > self._policy.limit

    def next_delay(self, lived: float = 0.0) -> float:
        """Seconds to wait before the next restart of a process that served for ``lived`` seconds."""
        now, policy = self._clock(), self._policy
        while self._restarts and self._restarts[0] <= now - policy.window:
            self._restarts.popleft()
        self._restarts.append(now)
        self._streak = 0 if lived >= policy.healthy else self._streak
        # Bounded: the power of a long streak would overflow.
        pause = policy.first * policy.factor ** min(self._streak, 64)
        self._streak += 1
        return min(pause, policy.longest) * (1.0 - policy.jitter * random.random())


async def restart_on_exit(
    life: Life,
    wait_for_end: Callable[[Life], Awaitable[bool]],
    start: Callable[[], Awaitable[Life | None]],
    backoff: Backoff,
    announce: Callable[[float], None],
) -> None:
    """Start the next life whenever one has ended, until ``wait_for_end`` returns False.

    ``start`` returns None for an attempt that failed: there is another one after the next pause. ``announce`` is
    called with the seconds of each pause. What any of the three raises ends this: a permanent error.
    """
    while True:
        began = time.monotonic()
        if not await wait_for_end(life):
            return
        lived, following = time.monotonic() - began, None
        while following is None:
            pause, lived = backoff.next_delay(lived), 0.0
            announce(pause)
            await asyncio.sleep(pause)
            following = await start()
        life = following
