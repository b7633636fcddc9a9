"""How long to wait before a restart, and when to stop trying."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class RestartPolicy:
    """Pauses of ``first`` times ``factor`` per recent restart, ``longest`` at most. Times are in seconds."""

    first: float = 0.1
    factor: float = 2.0
    longest: float = 5.0
    limit: int = 5  # restarts allowed within ``window``
    window: float = 60.0


class Backoff:
    """The restarts of one process."""

    def __init__(self, policy: RestartPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._restarts: deque[float] = deque()

    def next(self) -> float | None:
        """Seconds to wait before the next restart, or None when the limit is reached."""
        now = self._clock()
        while self._restarts and self._restarts[0] <= now - self._policy.window:
            self._restarts.popleft()
        if len(self._restarts) >= self._policy.limit:
            return None
        pause = self._policy.first * self._policy.factor ** len(self._restarts)
        self._restarts.append(now)
        return min(pause, self._policy.longest)
