"""Token bucket that fills at a steady rate. Pure state: the caller passes the clock."""


class TokenBucket:
    """Bucket that fills by ``rate`` a second up to ``most``. One ``take_tokens`` may overdraw it."""

    __slots__ = ("_at", "_level", "_most", "_rate")

    def __init__(self, rate: float, most: float, now: float) -> None:
        self._rate = rate
        self._most = most
        self._level = most
        self._at = now

    def resize(self, rate: float, most: float, now: float) -> None:
        """Change the rate; the level stays, as far as it fits."""
        self._fill(now)
        self._rate, self._most = rate, most
        self._level = min(self._level, most)

    def wait_seconds(self, need: float, now: float) -> float:
        """Return the seconds until ``need`` is available; 0 if it is now."""
        self._fill(now)
        return max(0.0, (min(need, self._most) - self._level) / self._rate)

    def state(self, now: float) -> tuple[float, float]:
        """Return the level (negative if overdrawn) and the seconds until full."""
        self._fill(now)
        return self._level, (self._most - self._level) / self._rate

    def take_tokens(self, amount: float, now: float) -> None:
        """Take ``amount``; a negative amount is returned to the bucket."""
        self._fill(now)
        self._level = min(self._most, self._level - amount)

    def _fill(self, now: float) -> None:
        self._level = min(self._most, self._level + max(0.0, now - self._at) * self._rate)
        self._at = max(now, self._at)
