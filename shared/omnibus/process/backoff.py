"""Delays before restarts, and the limit at which a process counts as one that cannot run."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class RestartPolicy:
    """Pauses of ``first`` times ``factor`` per restart, ``longest`` at most. Times are in seconds.

    After a life of ``healthy`` pauses begin anew. A process that has not served yet may be restarted ``limit``
    times within ``window``.
    """

    first: float = 0.1
    factor: float = 2.0
    longest: float = 30.0
    healthy: float = 10.0
    limit: int = 5
    window: float = 60.0


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
        return min(pause, policy.longest)
