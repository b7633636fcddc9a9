"""Restarts of processes: the loop, its pauses, and the limit after which a process has failed for good."""

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
    """Pauses between restarts, in seconds.

    A pause is ``first`` times ``factor`` per restart, at most ``longest``. After a life of ``healthy`` seconds, the
    pauses start from ``first`` again. A process that has not served yet may be restarted ``limit`` times within
    ``window``. Each pause is shorter by a random share of up to ``jitter``, so that processes that end together do not
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
    """Restarts of one process."""

    def __init__(self, policy: RestartPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._restarts: deque[float] = deque()
        self._streak = 0

    @property
    def exhausted(self) -> bool:
        """Return whether a process that never served has no restarts left."""
        return len(self._restarts) > self._policy.limit

    def next_delay(self, lifetime: float = 0.0) -> float:
        """Return the pause before the next restart, in seconds. The process has served for ``lifetime`` seconds."""
        now, policy = self._clock(), self._policy
        while self._restarts and self._restarts[0] <= now - policy.window:
            self._restarts.popleft()
        self._restarts.append(now)
        self._streak = 0 if lifetime >= policy.healthy else self._streak
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
    """Start the next life after each end, until ``wait_for_end`` returns False.

    ``start`` returns None for a failed attempt, which is repeated after the next pause. ``announce`` is called with the
    seconds of each pause. An exception of any of the three is a permanent error and ends this.
    """
    while True:
        began = time.monotonic()
        if not await wait_for_end(life):
            return
        lifetime, following = time.monotonic() - began, None
        while following is None:
            pause, lifetime = backoff.next_delay(lifetime), 0.0
            announce(pause)
            await asyncio.sleep(pause)
            following = await start()
        life = following
