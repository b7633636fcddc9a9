"""Prediction of one replica's performance from its profile: saturated throughput, and the cost of each request.

The same device as in an executor serves requests in a closed loop, without waiting and without an event
loop: each one that ends makes room for the next. The result is what a planner's profile holds, and what
a simulated executor must reach.

    predicted(profile, "EL", {"image": Demand(0.7, {"vision": Load(), "thinker": Load(700, 130)}),
                              "text": Demand(0.3, {"thinker": Load(40, 130)})})
"""

from collections.abc import Mapping
from itertools import accumulate

import msgspec

from omnibus.errors import BadRequest
from omnibus.executor.sim.device import Lane, Together, Turn, Work
from omnibus.executor.sim.distributions import Draw
from omnibus.executor.sim.engine import device_of, lane_of
from omnibus.executor.sim.profile import Option, Profile, kind_of
from omnibus.executor.sim.request import Load, Request

GOLDEN = 0.6180339887498949  # multiples of it fill [0, 1) evenly


class Demand(msgspec.Struct, frozen=True):
    """A request type: its share of all requests, and its loads by component in the order in which data flows.

    Encoders work side by side. A talker follows its thinker, and a vocoder its talker, as rows and codes come;
    what comes from components elsewhere is there when it is needed.
    """

    share: float
    loads: Mapping[str, Load]


class Predicted(msgspec.Struct, frozen=True):
    """Of one saturated replica, as a client's clock shows it: requests per second; seconds of the device per
    request by type, and by type and component; mean batch by component, steps where it has some."""

    throughput: float
    seconds: dict[str, float]
    parts: dict[str, dict[str, float]]
    batches: dict[str, float]


def predicted(
    profile: Profile,
    option: str,
    mix: Mapping[str, Demand],
    *,
    model: str = "",
    inflight: int = 64,
    batch: int = 16,
    requests: int = 1000,
) -> Predicted:
    """Predict the performance of one replica of ``option`` under ``mix`` with ``inflight`` requests at all times.

    ``inflight`` and ``batch`` are the executor's credits and batch; ``requests`` are observed. Raises
    ``BadRequest`` for a mix without work and for what the profile does not say.
    """
    _check(mix, inflight, requests)
    circle = _Circle(profile, profile.option(option, model), mix, batch)
    return circle.run(inflight, requests)


def _check(mix: Mapping[str, Demand], inflight: int, requests: int) -> None:
    shares = [demand.share for demand in mix.values()]
    loads = [load for demand in mix.values() for load in demand.loads.values()]
    if not sum(shares) > 0 or min(shares) < 0 or not all(demand.loads for demand in mix.values()):
        raise BadRequest("a mix needs request types with positive shares, each with a load for some component")
    if min(inflight, requests, *(load.items for load in loads)) < 1:
        raise BadRequest("inflight, requests and the items of a load must be at least 1")


class _Circle:
    """Requests that take each other's place: one that is over lets the next one begin."""

    def __init__(self, profile: Profile, option: Option, mix: Mapping[str, Demand], batch: int) -> None:
        self.option = option
        self.jitter = profile.jitter
        self._seed = profile.seed
        self.names = list(mix)
        self.mix = mix
        components = dict.fromkeys(name for demand in mix.values() for name in demand.loads)
        self.kinds: Mapping[str, str] = {name: kind_of(name, option.component(name)) for name in components}
        self.device = device_of(option, profile.time_scale)
        self.lanes: Mapping[str, Lane] = {
            name: lane_of(self.device, option, name, kind, batch) for name, kind in self.kinds.items()
        }
        self.owners: dict[Work, tuple[Request, str]] = {}
        self.done: list[Request] = []
        self._marks = list(accumulate(demand.share for demand in mix.values()))
        self._begun = 0

    def run(self, inflight: int, requests: int) -> Predicted:
        for _ in range(inflight):
            self.begin(0.0)
        began = self._serve(inflight + requests // 4, 0.0)  # the first ones found the device empty
        self.done = []
        return self._summary(self._serve(requests, began) - began)

    def _serve(self, requests: int, at: float) -> float:
        """Turn until so many are done; returns the time."""
        while len(self.done) < requests:
            turn = self.device.turn(at)
            if turn is None:
                raise BadRequest("the mix brings no work to the device")
            at += turn.seconds
            self._charge(turn)
            self.device.finish(turn, at, len(turn.ends))
        return at

    def begin(self, at: float) -> None:
        place = self._begun * GOLDEN % 1.0 * self._marks[-1]
        name = next(name for name, mark in zip(self.names, self._marks, strict=True) if place < mark)
        draw = Draw(self._seed, "predicted", self._begun)
        self._begun += 1
        Request(self, name, self.mix[name].loads, draw).begin(at)

    def put(self, request: Request, component: str, work: Work, at: float) -> None:
        self.owners[work] = (request, component)
        request.works.append(work)
        self.lanes[component].put(work, at)

    def over(self, request: Request, at: float) -> None:
        self.done.append(request)
        for work in request.works:
            del self.owners[work]
        self.begin(at)

    def _charge(self, turn: Turn | Together) -> None:
        for (work, _), seconds in zip(turn.works, turn.parts(), strict=True):
            request, component = self.owners[work]
            request.seconds[component] += seconds

    def _summary(self, passed: float) -> Predicted:
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
            batches={name: _mean(lane.steps or lane.passes) for name, lane in self.lanes.items()},
        )


def _mean(batches: Mapping[int, int]) -> float:
    return sum(size * count for size, count in batches.items()) / max(1, sum(batches.values()))
