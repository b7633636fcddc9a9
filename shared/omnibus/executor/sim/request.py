"""One request on a device that nobody waits for: each thing that happens to it brings the next about."""

from collections.abc import Mapping
from functools import partial
from math import inf
from typing import Protocol

import msgspec

from omnibus.executor.sim.device import Lane, Sequence, Work
from omnibus.executor.sim.distributions import Draw
from omnibus.executor.sim.engine import KINDS
from omnibus.executor.sim.profile import ANY, Component, Option
from omnibus.executor.sim.speech import Talk


class Load(msgspec.Struct, frozen=True):
    """Load of one request on a component: ``tokens`` of each of ``items`` inputs, ``steps`` (of an answer, of
    codes). None: as the profile draws them."""

    tokens: int | None = None
    steps: int | None = None
    items: int = 1
    modality: str = ANY


class Circle(Protocol):
    """Interface of the closed loop in which requests run."""

    option: Option
    jitter: float
    kinds: Mapping[str, str]
    lanes: Mapping[str, Lane]

    def put(self, request: "Request", component: str, work: Work, at: float) -> None:
        """Queue ``work``."""

    def over(self, request: "Request", at: float) -> None:
        """``request`` has everything."""


class Request:
    """One request in the circle: encoders side by side, then one component after the other."""

    def __init__(self, circle: Circle, name: str, loads: Mapping[str, Load], draw: Draw) -> None:
        self.name = name
        self.seconds = dict.fromkeys(loads, 0.0)
        self.works: list[Work] = []
        self._circle = circle
        self._loads = loads
        self._draw = draw
        self._open = len(loads)
        self._encoders = [part for part in loads if circle.kinds[part] == "encode"]
        self._chain = [part for part in loads if circle.kinds[part] != "encode"]
        self._items = {part: loads[part].items for part in self._encoders}
        self._sequences: dict[int, Sequence] = {}
        self._codes: list[int] = []  # of a vocoder, message by message
        self._reported = 0
        self._silent = False  # no code will follow

    def begin(self, at: float) -> None:
        for part in self._encoders:
            for _ in range(self._loads[part].items):
                self._put(part, Work(self._tokens(part)), partial(self._encoded, part), at)
        if not self._encoders:
            self._go(0, at)

    def _put(self, part: str, work: Work, told: "partial[None]", at: float) -> None:
        work.told = told
        work.factor = self._draw.around(self._circle.jitter)
        self._circle.put(self, part, work, at)

    def _encoded(self, part: str, at: float) -> None:
        self._items[part] -= 1
        if self._items[part]:
            return
        if not any(self._items.values()):
            self._go(0, at)
        self._end(at)

    # The chain

    def _kind(self, index: int) -> str:
        return self._circle.kinds[self._chain[index]] if index < len(self._chain) else ""

    def _go(self, index: int, at: float) -> None:
        """Begin a component that has all that it reads."""
        kind = self._kind(index)
        if kind == "vocode":
            size, whole = Talk.chunk, self._steps(self._chain[index])
            self._sound(index, [min(size, whole - begin) for begin in range(0, whole, size)], True, at)
        elif kind:
            self._start(index, inf, at)

    def _start(self, index: int, allowed: float, at: float) -> None:
        part = self._chain[index]
        told = partial(self._moved, index)
        if self._lane(part).step is None:
            self._put(part, Work(self._tokens(part)), told, at)
            return
        sequence = Sequence(self._tokens(part), limit=self._length(index), allowed=allowed)
        sequence.every = self._part(part).chunk or KINDS[self._kind(index)].chunk
        sequence.mark = 1 if self._kind(index + 1) == "talk" else sequence.every
        self._sequences[index] = sequence
        self._put(part, sequence, told, at)

    def _length(self, index: int) -> int:
        """Steps of component ``index``; those that follow from a thinker's rows are at least as many."""
        part, before = self._chain[index], self._sequences.get(index - 1)
        rows = int(before.limit) - 1 if before is not None else 0
        steps = self._steps(part, rows)
        return max(rows, steps) if self._loads[part].steps is None and self._part(part).length.per else steps

    def _moved(self, index: int, at: float) -> None:
        """Something happened to component ``index``: pass it on to the next one."""
        sequence, follower = self._sequences.get(index), self._kind(index + 1)
        ended = sequence is None or sequence.finished
        if follower == "talk" and sequence is not None:
            self._speak(index + 1, inf if ended else sequence.done - 1, at)
        elif follower == "vocode" and sequence is not None:
            new, self._reported = sequence.done - self._reported, sequence.done
            self._sound(index + 1, [new] if new else [], ended, at)
        elif ended:
            self._go(index + 1, at)
        if ended:
            self._end(at)

    def _speak(self, index: int, rows: float, at: float) -> None:
        sequence = self._sequences.get(index)
        if sequence is not None:
            self._lane(self._chain[index]).grow(sequence, rows, sequence.limit, at)
        elif rows > 0:
            self._start(index, rows, at)

    def _sound(self, index: int, codes: list[int], ended: bool, at: float) -> None:
        idle = not self._codes
        self._codes += codes
        self._silent = ended
        if idle and self._codes:
            self._vocode(index, at)
        elif idle and ended:
            self._heard(index, at)

    def _vocode(self, index: int, at: float) -> None:
        self._put(self._chain[index], Work(self._codes[0]), partial(self._sounded, index), at)

    def _sounded(self, index: int, at: float) -> None:
        self._codes.pop(0)
        if self._codes:
            self._vocode(index, at)
        elif self._silent:
            self._heard(index, at)

    def _heard(self, index: int, at: float) -> None:
        self._go(index + 1, at)
        self._end(at)

    def _end(self, at: float) -> None:
        self._open -= 1
        if not self._open:
            self._circle.over(self, at)

    # Sizes

    def _part(self, name: str) -> Component:
        return self._circle.option.component(name)

    def _lane(self, name: str) -> Lane:
        return self._circle.lanes[name]

    def _tokens(self, name: str) -> int:
        load, part = self._loads[name], self._part(name)
        if load.tokens is not None:
            return load.tokens
        size = part.tokens_of(load.modality)
        if size is None and load.modality == ANY and part.tokens:
            size = part.tokens_of(next(iter(part.tokens)))
        return size.draw(self._draw) if size is not None else 0

    def _steps(self, name: str, amount: float = 0.0) -> int:
        load = self._loads[name]
        return load.steps if load.steps is not None else self._part(name).length.draw(self._draw, amount)
