"""A bucket that fills at a steady rate: how limits of a rate are kept. Pure state: the clock is given."""


class TokenBucket:
    """Fills by ``rate`` a second up to ``most``. One ``take_tokens`` may overdraw it; then it must fill up first."""

    __slots__ = ("_at", "_level", "_most", "_rate")

    def __init__(self, rate: float, most: float, now: float) -> None:
        self._rate = rate
        self._most = most
        self._level = most
        self._at = now

    def resize(self, rate: float, most: float, now: float) -> None:
        """From now on another rate; what is in it stays, as far as it fits."""
        self._fill(now)
        self._rate, self._most = rate, most
        self._level = min(self._level, most)

    def wait_seconds(self, need: float, now: float) -> float:
        """Seconds until ``need`` is there; 0: now."""
        self._fill(now)
        return max(0.0, (min(need, self._most) - self._level) / self._rate)

    def state(self, now: float) -> tuple[float, float]:
        """The amount that is in it (negative when it is overdrawn), and the seconds until it is full."""
        self._fill(now)
        return self._level, (self._most - self._level) / self._rate

    def take_tokens(self, amount: float, now: float) -> None:
        """Take ``amount``, or give back a negative one."""
        self._fill(now)
        self._level = min(self._most, self._level - amount)

    def _fill(self, now: float) -> None:
        self._level = min(self._most, self._level + max(0.0, now - self._at) * self._rate)
        self._at = max(now, self._at)
