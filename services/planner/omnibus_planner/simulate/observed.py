"""One request in executors, with the times that its client observes."""

from collections.abc import Mapping
from math import inf
from typing import Protocol

from omnibus.executor.sim.distributions import Draw
from omnibus.executor.sim.request import ComponentLoad, RequestLoop, SimulatedRequest

#: Kinds of components whose steps are tokens of an answer.
_ANSWERING = ("think", "decode")


class RequestWay(RequestLoop, Protocol):
    """Interface of the executors of one request."""

    def finish_component(self, component: str, at: float) -> None:
        """Note that ``component`` is complete."""


class ObservedRequest(SimulatedRequest):
    """A request of type ``kind`` to ``model`` that arrived at ``arrival``.

    Times are virtual seconds, 0 for events that have not happened. ``first_token`` and ``last_token`` are of the
    answer's text, ``first_audio`` and ``done`` of the first and the last chunk. ``tokens`` and ``codes`` count the
    received ones.
    """

    def __init__(
        self,
        way: RequestWay,
        model: str,
        kind: str,
        loads: Mapping[str, ComponentLoad],
        draw: Draw,
        arrival: float,
        path: str,
    ) -> None:
        super().__init__(way, kind, loads, draw)
        self._way = way
        self.model = model
        self.arrival = arrival
        self.path = path
        self.first_token = self.last_token = self.first_audio = self.done = 0.0
        self.tokens = self.codes = 0

    @property
    def spoken_seconds(self) -> float:
        """Seconds of speech so far."""
        vocoders = [part for part in self._chain if self._circle.kinds[part] == "vocode"]
        part = self._find_component(vocoders[0]) if vocoders else None
        return self.codes * part.samples / part.rate if part is not None else 0.0

    def _message_steps(self, index: int) -> tuple[float, float]:
        """Report the first token always, later ones only if another component follows."""
        first, every = super()._message_steps(index)
        follows = self._component_kind(index + 1) in ("talk", "vocode")
        return (1 if self._component_kind(index) in _ANSWERING else first), (every if follows else inf)

    def _on_progress(self, index: int, at: float) -> None:
        sequence = self._sequences.get(index)
        if sequence is not None and self._component_kind(index) in _ANSWERING:
            self.first_token = self.first_token or at
            self.last_token, self.tokens = at, sequence.done
        super()._on_progress(index, at)

    def _on_vocoded(self, index: int, at: float) -> None:
        self.first_audio = self.first_audio or at
        self.codes += self._codes[0]
        super()._on_vocoded(index, at)

    def _finish_component(self, part: str, at: float) -> None:
        self._way.finish_component(part, at)
        self.done = at
        super()._finish_component(part, at)
        if not self._open:
            self._sequences.clear()  # they refer to this request: a cycle would wait for the garbage collector
