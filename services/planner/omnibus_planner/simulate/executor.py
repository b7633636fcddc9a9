"""One executor in virtual time: the device and lanes of the ``sim`` engine, and its assigned work."""

from collections.abc import Mapping
from functools import partial

from omnibus.executor.sim.device import CombinedTurn, DeviceTurn, Lane, SimSequence, SimWork
from omnibus.executor.sim.engine import device_of, lane_of
from omnibus.executor.sim.profile import SimOption
from omnibus_planner.simulate.agenda import Agenda, Event


class SimulatedExecutor:
    """One replica of ``option``, on ``node``, that runs components of ``kinds``.

    ``inflight`` counts requests, ``outstanding`` is their work in tokens, as gateways count it. ``slots`` are the rows
    of a batch if the option does not define them.
    """

    def __init__(
        self,
        agenda: Agenda,
        name: str,
        option: SimOption,
        kinds: Mapping[str, str],
        scale: float,
        slots: int,
        node: str,
    ) -> None:
        self.name = name
        self.node = node
        self.inflight = 0
        self.outstanding = 0.0
        self.device = device_of(option, scale)
        self.lanes = {
            part: ExecutorLane(self, lane_of(self.device, option, part, kind, slots)) for part, kind in kinds.items()
        }
        self._agenda = agenda
        self._turn: DeviceTurn | CombinedTurn | None = None
        self._began = 0.0
        self._steps = 0
        self._number = 0
        self._turning = False

    def charge_work(self, work: float, *, first: bool) -> None:
        """Add a component's work, the ``first`` of its request or another."""
        self.inflight += first
        self.outstanding += work

    def discharge_work(self, work: float, *, last: bool) -> None:
        """Remove a component's work, the ``last`` of its request here or another."""
        self.inflight -= last
        self.outstanding -= work

    def send_message(self, message: Event, at: float) -> None:
        """Let ``message`` change a lane at ``at``, or after a turn's end.

        If a turn ends just then, the next one begins first.
        """
        self._agenda.add(at, partial(self._read_message, message))

    def _read_message(self, message: Event, at: float) -> None:
        self._interrupt_turn(at)
        message(at)
        self._start_turn(at)

    def _interrupt_turn(self, at: float) -> None:
        """End a turn of several steps after the current one: a message has arrived."""
        turn = self._turn
        if turn is None or self._steps == 1:
            return
        steps = turn.steps_begun(at - self._began)
        if steps < self._steps:
            self._plan_end(turn, steps)

    def _start_turn(self, at: float) -> None:
        """Begin the next turn if none is running and work is waiting."""
        if self._turning:
            return
        turn = self.device.next_turn(at)
        if turn is not None:
            self._turning = True
            self._turn, self._began = turn, at
            self._plan_end(turn, len(turn.ends))

    def _plan_end(self, turn: DeviceTurn | CombinedTurn, steps: int) -> None:
        self._steps = steps
        self._number += 1
        self._agenda.add(self._began + turn.ends[steps - 1], partial(self._end_turn, self._number))

    def _end_turn(self, number: int, at: float) -> None:
        turn = self._turn
        if turn is None or number != self._number:  # its end was planned again
            return
        self._turn = None
        self.device.finish_turn(turn, at, self._steps)
        self._turning = False
        self._start_turn(at)


class ExecutorLane:
    """A component in an executor. New work wakes the device.

    An executor reads it like a message, after all other events of the same time. So an executor whose turn has ended
    chooses the next one first. Only then can others send it work that follows from the ended turn.
    """

    __slots__ = ("executor", "lane", "step")

    def __init__(self, executor: SimulatedExecutor, lane: Lane) -> None:
        self.executor = executor
        self.lane = lane
        self.step = lane.step

    def queue_work(self, work: SimWork, at: float) -> None:
        """Queue ``work`` at ``at``."""
        self.executor.send_message(partial(self.lane.queue_work, work), at)

    def extend_sequence(self, sequence: SimSequence, allowed: float, limit: float, at: float) -> None:
        """Let ``sequence`` take ``allowed`` steps by now, and end after ``limit``."""
        self.executor.send_message(partial(self.lane.extend_sequence, sequence, allowed, limit), at)
