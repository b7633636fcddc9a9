"""Smoothness of a streamed answer: the time between tokens, and gaps in its audio playback."""

import time
from math import inf

from omnibus.metrics import GATEWAY


class StreamLatency:
    """Times of the pieces of one answer. A client plays its audio from the first piece on.

    ``created_at`` is when the request arrived, Unix seconds.
    """

    __slots__ = (
        "_born", "_first_audio", "_heard", "_last", "_longest", "_pauses", "_pieces", "_plays_until", "_said",
        "_seconds", "_silence",
    )  # fmt: skip

    def __init__(self, created_at: float) -> None:
        self._born = time.monotonic() - (time.time() - created_at)
        self._said = self._last = 0.0  # when the first and the last text were sent
        self._longest = 0.0
        self._pieces = 0
        self._first_audio = self._heard = 0.0  # when the first and the last audio were sent
        self._seconds = 0.0
        self._plays_until = inf
        self._pauses, self._silence = 0, 0.0

    def record_text(self) -> None:
        """Record text that is sent now."""
        now = time.monotonic()
        if self._pieces:
            self._longest = max(self._longest, now - self._last)
        else:
            self._said = now
        self._last = now
        self._pieces += 1

    def record_audio(self, seconds: float) -> None:
        """Record ``seconds`` of audio that are sent now."""
        now = self._heard = time.monotonic()
        self._first_audio = self._first_audio or now
        late = now - self._plays_until
        if late > 0:
            self._pauses += 1
            self._silence += late
        self._plays_until = (now if late > 0 or not self._seconds else self._plays_until) + seconds
        self._seconds += seconds

    def publish_metrics(self, model: str, tokens: int) -> dict[str, float]:
        """Publish the metrics of a sent answer with ``tokens`` of text.

        Returns the client's seconds by figure (``omnibus.cluster.latency_histogram.FIGURES``). Text in one piece has
        no time to the first token."""
        figures = {}
        if self._pieces > 1:
            figures["first_token"] = self._said - self._born
            figures["token"] = (self._last - self._said) / max(1, max(tokens, self._pieces) - 1)
            GATEWAY.tbt.labels(model).observe(figures["token"])
            GATEWAY.pause.labels(model).observe(self._longest)
        if self._seconds:
            figures["first_audio"] = self._first_audio - self._born
            figures["real_time"] = (self._heard - self._first_audio) / self._seconds
            GATEWAY.factor.labels(model).observe((self._heard - self._born) / self._seconds)
            GATEWAY.underruns.labels(model).inc(self._pauses)
            GATEWAY.silence.labels(model).inc(self._silence)
            GATEWAY.sound.labels(model).inc(self._seconds)
        return figures
