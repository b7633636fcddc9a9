"""One request on a device, driven by callbacks: each event starts the next work."""

from collections.abc import Mapping
from functools import partial
from math import inf
from typing import Protocol

import msgspec

from omnibus.executor.sim.device import SimSequence, SimWork
from omnibus.executor.sim.distributions import Curve, Draw
from omnibus.executor.sim.engine import KINDS
from omnibus.executor.sim.profile import ANY, SimComponent
from omnibus.executor.sim.speech import SimulatedTalker


class ComponentLoad(msgspec.Struct, frozen=True):
    """Load of one request on a component.

    ``tokens`` are those of each of ``items`` inputs, ``steps`` those of an answer, or codes. None: drawn from the
    profile. ``chunk`` is the number of codes in a message to a vocoder whose talker is elsewhere. 0: the profile's for
    talkers.
    """

    tokens: int | None = None
    steps: int | None = None
    items: int = 1
    modality: str = ANY
    chunk: int = 0


class WorkLane(Protocol):
    """Interface of a lane whose sequences are allowed steps one by one."""

    @property
    def step(self) -> Curve | None: ...

    def extend_sequence(self, sequence: SimSequence, allowed: float, limit: float, at: float) -> None:
        """See ``Lane.extend_sequence``."""


class ComponentTimes(Protocol):
    """Interface of times by component: an option, or several of them."""

    def find_component(self, name: str) -> SimComponent:
        """See ``SimOption.find_component``."""


class RequestLoop(Protocol):
    """Interface of the loop that runs requests on one device or several."""

    @property
    def option(self) -> ComponentTimes: ...

    @property
    def jitter(self) -> float: ...

    @property
    def kinds(self) -> Mapping[str, str]: ...

    @property
    def lanes(self) -> Mapping[str, WorkLane]: ...

    def queue_work(self, request: "SimulatedRequest", component: str, work: SimWork, at: float) -> None:
        """Queue ``work``."""

    def finish_request(self, request: "SimulatedRequest", at: float) -> None:
        """Complete ``request``."""


class SimulatedRequest:
    """One request in the loop: encoders concurrently, then one component after the other."""

    def __init__(self, circle: RequestLoop, name: str, loads: Mapping[str, ComponentLoad], draw: Draw) -> None:
        self.name = name
        self.seconds = dict.fromkeys(loads, 0.0)
        self.works: list[SimWork] = []
        self._circle = circle
        self._loads = loads
        self._draw = draw
        self._open = len(loads)
        self._encoders = [part for part in loads if circle.kinds[part] == "encode"]
        self._chain = [part for part in loads if circle.kinds[part] != "encode"]
        self._items = {part: loads[part].items for part in self._encoders}
        self._sequences: dict[int, SimSequence] = {}
        self._codes: list[int] = []  # of a vocoder, message by message
        self._reported = 0
        self._silent = False  # no more codes will follow
        self._came = 0.0

    def start_encoders(self, at: float) -> None:
        self._came = at
        for part in self._encoders:
            for _ in range(self._loads[part].items):
                work = SimWork(self._draw_tokens(part))
                work.continues = bool(self._chain)
                self._queue_work(part, work, partial(self._on_encoded, part), at)
        if not self._encoders:
            self._begin_component(0, at)

    def _queue_work(self, part: str, work: SimWork, told: "partial[None]", at: float) -> None:
        work.told = told
        work.since = self._came
        work.factor = self._draw.jitter_factor(self._circle.jitter)
        self._circle.queue_work(self, part, work, at)

    def _on_encoded(self, part: str, at: float) -> None:
        self._items[part] -= 1
        if self._items[part]:
            return
        if not any(self._items.values()):
            self._begin_component(0, at)
        self._finish_component(part, at)

    # The chain

    def _component_kind(self, index: int) -> str:
        return self._circle.kinds[self._chain[index]] if index < len(self._chain) else ""

    def _begin_component(self, index: int, at: float) -> None:
        """Start a component whose inputs are complete."""
        kind = self._component_kind(index)
        if kind == "vocode":
            load, whole = self._loads[self._chain[index]], self._draw_steps(self._chain[index])
            size = load.chunk or SimulatedTalker.chunk
            self._feed_vocoder(index, [min(size, whole - begin) for begin in range(0, whole, size)], True, at)
        elif kind:
            self._queue_component(index, inf, at)

    def _queue_component(self, index: int, allowed: float, at: float) -> None:
        part = self._chain[index]
        told = partial(self._on_progress, index)
        if self._component_lane(part).step is None:
            self._queue_work(part, SimWork(self._draw_tokens(part)), told, at)
            return
        sequence = SimSequence(self._draw_tokens(part), limit=self._sequence_length(index), allowed=allowed)
        sequence.mark, sequence.every = self._message_steps(index)
        self._sequences[index] = sequence
        self._queue_work(part, sequence, told, at)

    def _message_steps(self, index: int) -> tuple[float, float]:
        """Return the steps before component ``index``'s first message, and between later ones."""
        every = self._find_component(self._chain[index]).chunk or KINDS[self._component_kind(index)].chunk
        return (1 if self._component_kind(index + 1) == "talk" else every), every

    def _sequence_length(self, index: int) -> int:
        """Return the steps of component ``index``; at least one per row of its thinker."""
        part, before = self._chain[index], self._sequences.get(index - 1)
        rows = int(before.limit) - 1 if before is not None else 0
        steps = self._draw_steps(part, rows)
        return (
            max(rows, steps) if self._loads[part].steps is None and self._find_component(part).steps_size.per else steps
        )

    def _on_progress(self, index: int, at: float) -> None:
        """Pass an event of component ``index`` on to the next component."""
        sequence, follower = self._sequences.get(index), self._component_kind(index + 1)
        ended = sequence is None or sequence.is_finished
        if follower == "talk" and sequence is not None:
            self._feed_talker(index + 1, inf if ended else sequence.done - 1, at)
        elif follower == "vocode" and sequence is not None:
            new, self._reported = sequence.done - self._reported, sequence.done
            self._feed_vocoder(index + 1, [new] if new else [], ended, at)
        elif ended:
            self._begin_component(index + 1, at)
        if ended:
            self._finish_component(self._chain[index], at)

    def _feed_talker(self, index: int, rows: float, at: float) -> None:
        sequence = self._sequences.get(index)
        if sequence is not None:
            self._component_lane(self._chain[index]).extend_sequence(sequence, rows, sequence.limit, at)
        elif rows > 0:
            self._queue_component(index, rows, at)

    def _feed_vocoder(self, index: int, codes: list[int], ended: bool, at: float) -> None:
        idle = not self._codes
        self._codes += codes
        self._silent = ended
        if idle and self._codes:
            self._queue_vocoder(index, at)
        elif idle and ended:
            self._finish_vocoder(index, at)

    def _queue_vocoder(self, index: int, at: float) -> None:
        self._queue_work(self._chain[index], SimWork(self._codes[0]), partial(self._on_vocoded, index), at)

    def _on_vocoded(self, index: int, at: float) -> None:
        self._codes.pop(0)
        if self._codes:
            self._queue_vocoder(index, at)
        elif self._silent:
            self._finish_vocoder(index, at)

    def _finish_vocoder(self, index: int, at: float) -> None:
        self._begin_component(index + 1, at)
        self._finish_component(self._chain[index], at)

    def _finish_component(self, part: str, at: float) -> None:
        """Count ``part`` as done; the last one ends the request."""
        self._open -= 1
        if not self._open:
            self._circle.finish_request(self, at)

    # Sizes

    def _find_component(self, name: str) -> SimComponent:
        return self._circle.option.find_component(name)

    def _component_lane(self, name: str) -> WorkLane:
        return self._circle.lanes[name]

    def _draw_tokens(self, name: str) -> int:
        load, part = self._loads[name], self._find_component(name)
        if load.tokens is not None:
            return load.tokens
        size = part.tokens_of(load.modality)
        if size is None and load.modality == ANY and part.tokens:
            size = part.tokens_of(next(iter(part.tokens)))
        return size.draw_size(self._draw) if size is not None else 0

    def _draw_steps(self, name: str, amount: float = 0.0) -> int:
        load = self._loads[name]
        return (
            load.steps
            if load.steps is not None
            else self._find_component(name).steps_size.draw_size(self._draw, amount)
        )
