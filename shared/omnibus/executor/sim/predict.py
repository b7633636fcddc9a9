"""Prediction of one replica from its profile: saturated throughput, and cost per request.

The device of simulated executors serves requests in a closed loop, without waiting and without an event loop. Each
request that ends is replaced by the next. The result is the content of a planner's profile, and the goal for a
simulated executor. As in an executor, the events of a turn are processed while the next turn runs. That one was chosen
when the first had ended, before any message could arrive.

    predict_performance(profile, "EL", {
        "image": TypeDemand(0.7, {"vision": ComponentLoad(), "thinker": ComponentLoad(700, 130)}),
        "text": TypeDemand(0.3, {"thinker": ComponentLoad(40, 130)}),
    })
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate

import msgspec

from omnibus.errors import BadRequest
from omnibus.executor.sim.device import CombinedTurn, DeviceTurn, Lane, SimSequence, SimWork
from omnibus.executor.sim.distributions import Curve, Draw
from omnibus.executor.sim.engine import device_of, lane_of
from omnibus.executor.sim.profile import Profile, SimOption, kind_of
from omnibus.executor.sim.request import ComponentLoad, SimulatedRequest

GOLDEN = 0.6180339887498949  # its multiples fill [0, 1) evenly


class TypeDemand(msgspec.Struct, frozen=True):
    """A request type: its share of all requests, and its loads by component.

    Loads are in the order in which data flows. Encoders run concurrently. A talker follows its thinker, and a vocoder
    its talker, as rows and codes arrive. Outputs of components elsewhere are available when needed.
    """

    share: float
    loads: Mapping[str, ComponentLoad]


class Predicted(msgspec.Struct, frozen=True):
    """Performance of one saturated replica, by a client's clock.

    ``throughput`` is in requests per second. ``seconds`` of the device per request are by type, and ``parts`` of them
    by type and component. ``batches`` are mean batches by component, of steps if it has steps.
    """

    throughput: float
    seconds: dict[str, float]
    parts: dict[str, dict[str, float]]
    batches: dict[str, float]


def predict_performance(
    profile: Profile,
    option: str,
    mix: Mapping[str, TypeDemand],
    *,
    model: str = "",
    inflight: int = 64,
    batch: int = 16,
    requests: int = 1000,
) -> Predicted:
    """Predict the performance of a replica of ``option`` with ``inflight`` concurrent requests.

    ``inflight`` and ``batch`` are the executor's credits and batch; ``requests`` are observed. Raises ``BadRequest``
    for a ``mix`` without work, and if the profile lacks a field.
    """
    _check_mix(mix, inflight, requests)
    circle = _ClosedLoop(profile, profile.find_option(option, model), mix, batch)
    return circle.run(inflight, requests)


def _check_mix(mix: Mapping[str, TypeDemand], inflight: int, requests: int) -> None:
    shares = [demand.share for demand in mix.values()]
    loads = [load for demand in mix.values() for load in demand.loads.values()]
    if not sum(shares) > 0 or min(shares) < 0 or not all(demand.loads for demand in mix.values()):
        raise BadRequest("a mix needs request types with positive shares, each with a load for some component")
    if min(inflight, requests, *(load.items for load in loads)) < 1:
        raise BadRequest("inflight, requests and the items of a load must be at least 1")


def _fill_chunks(demand: TypeDemand, option: SimOption) -> TypeDemand:
    """Use the talker's messages for vocoders, even if the talker runs elsewhere."""
    talkers = [part for name, part in option.components.items() if kind_of(name, part) == "talk"]
    size = next((part.chunk for part in talkers if part.chunk), 0)
    filled = {part: msgspec.structs.replace(load, chunk=load.chunk or size) for part, load in demand.loads.items()}
    return msgspec.structs.replace(demand, loads=filled)


class _ClosedLoop:
    """Requests in a closed loop: each one that ends is replaced by the next."""

    def __init__(self, profile: Profile, option: SimOption, mix: Mapping[str, TypeDemand], batch: int) -> None:
        self.option = option
        self.jitter = profile.jitter
        self._seed = profile.seed
        self.names = list(mix)
        self.mix = {name: _fill_chunks(demand, option) for name, demand in mix.items()}
        components = dict.fromkeys(name for demand in mix.values() for name in demand.loads)
        self.kinds: Mapping[str, str] = {name: kind_of(name, option.find_component(name)) for name in components}
        self.device = device_of(option, profile.time_scale)
        self._messages: deque[Callable[[float], None]] = deque()
        self.lanes: Mapping[str, _MessageLane] = {
            name: _MessageLane(lane_of(self.device, option, name, kind, batch), self._messages)
            for name, kind in self.kinds.items()
        }
        self.owners: dict[SimWork, tuple[SimulatedRequest, str]] = {}
        self.done: list[SimulatedRequest] = []
        self._marks = list(accumulate(demand.share for demand in mix.values()))
        self._begun = 0

    def run(self, inflight: int, requests: int) -> Predicted:
        for _ in range(inflight):
            self.begin_request(0.0)
        began = self._serve_requests(inflight + requests // 4, 0.0)  # the first requests found an empty device
        self.done = []
        return self._summarize_requests(self._serve_requests(requests, began) - began)

    def _serve_requests(self, requests: int, at: float) -> float:
        """Run turns until ``requests`` are done; returns the time."""
        while len(self.done) < requests:
            turn = self.device.next_turn(at)
            if self._deliver_messages(at):
                turn = _first_step(turn) if turn is not None else self.device.next_turn(at)
            if turn is None:
                raise BadRequest("the mix brings no work to the device")
            at += turn.seconds
            self._charge_turn(turn)
            self.device.finish_turn(turn, at, len(turn.ends))
        return at

    def _deliver_messages(self, at: float) -> bool:
        """Deliver the pending messages to lanes; returns whether there were any."""
        there = bool(self._messages)
        while self._messages:
            self._messages.popleft()(at)
        return there

    def begin_request(self, at: float) -> None:
        place = self._begun * GOLDEN % 1.0 * self._marks[-1]
        name = next(name for name, mark in zip(self.names, self._marks, strict=True) if place < mark)
        draw = Draw(self._seed, "predicted", self._begun)
        self._begun += 1
        SimulatedRequest(self, name, self.mix[name].loads, draw).start_encoders(at)

    def queue_work(self, request: SimulatedRequest, component: str, work: SimWork, at: float) -> None:
        self.owners[work] = (request, component)
        request.works.append(work)
        self.lanes[component].queue_work(work, at)

    def finish_request(self, request: SimulatedRequest, at: float) -> None:
        self.done.append(request)
        for work in request.works:
            del self.owners[work]
        self.begin_request(at)

    def _charge_turn(self, turn: DeviceTurn | CombinedTurn) -> None:
        for (work, _), seconds in zip(turn.works, turn.seconds_by_work(), strict=True):
            request, component = self.owners[work]
            request.seconds[component] += seconds

    def _summarize_requests(self, passed: float) -> Predicted:
        parts: dict[str, dict[str, float]] = {}
        for name in self.names:
            mine = [request for request in self.done if request.name == name]
            parts[name] = {
                component: sum(request.seconds[component] for request in mine) / len(mine)
                for component in (self.mix[name].loads if mine else ())
            }
        return Predicted(
            throughput=len(self.done) / passed,
            seconds={name: sum(each.values()) for name, each in parts.items()},
            parts=parts,
            batches={name: _mean_batch_size(each.lane.steps or each.lane.passes) for name, each in self.lanes.items()},
        )


class _MessageLane:
    """A lane that receives its works as messages."""

    __slots__ = ("_messages", "lane", "step")

    def __init__(self, lane: Lane, messages: deque[Callable[[float], None]]) -> None:
        self.lane = lane
        self.step: Curve | None = lane.step
        self._messages = messages

    def queue_work(self, work: SimWork, at: float) -> None:
        self._messages.append(partial(self.lane.queue_work, work))

    def extend_sequence(self, sequence: SimSequence, allowed: float, limit: float, at: float) -> None:
        self._messages.append(partial(self.lane.extend_sequence, sequence, allowed, limit))


def _first_step(turn: DeviceTurn | CombinedTurn) -> DeviceTurn | CombinedTurn:
    """Return the first step of ``turn``, for a message that interrupts it."""
    return turn._replace(ends=turn.ends[: turn.steps_begun(0.0)])


def _mean_batch_size(batches: Mapping[int, int]) -> float:
    return sum(size * count for size, count in batches.items()) / max(1, sum(batches.values()))
