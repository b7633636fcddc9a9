"""A cluster of simulated executors in virtual time: LLaVA-1.5-7B captions images (TextCaps).

No clock, no process. At most 10 % of the requests may have a late first token, and 10 % of the gaps between tokens may
be late. Goodput is the highest rate within these limits (TriInfer, section 2.2).
"""

import heapq
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import count, pairwise
from math import inf, log
from typing import Any, NamedTuple

import msgspec

from omnibus.executor import sim
from omnibus.executor.sim.device import CombinedTurn, DeviceTurn, SimSequence, SimWork
from omnibus.executor.sim.distributions import Curve, Draw, SizeDistribution
from omnibus.executor.sim.engine import device_of, lane_of
from omnibus.executor.sim.profile import kind_of
from omnibus.executor.step_budget import largest_within_goal

GPUS = 8
#: Seconds of warm-up as a multiple of the goal for the first token.
WARM_UP_GOALS = 1.0
MET = 0.9  # of the requests, and of the gaps of a request: section 2.2

# Sizes. An image of LLaVA-1.5 has 576 tokens (section 5.1). Figure 8 shows lengths without numbers: others are ours.
IMAGE, WORDS = 576, 40
CAPTION = SizeDistribution(mean=50, cv=0.5, most=200)

# The paper plots times without numbers. These follow from its table 2 with the model's sizes (LLM: H 4096, 32 layers;
# vision: H 1024, 24 layers) at 60 % of an H20's computation (148 TFLOP/s) and bandwidth (4 TB/s). Saturation follows
# from figure 3. Prefill takes 24 H^2 FLOP a token and layer, so a prompt of 1024 fills the GPU. Encoding is equal, and
# full at 6 images. Decoding reads keys and values, 512 KiB a position, and gains from batches up to about 512. A step
# costs 20 ms even for few sequences, as it does without CUDA graphs.
ENCODE = Curve(base=0.002, per_token=6.8e-6, saturation=6 * IMAGE)
PREFILL = Curve(base=0.004, per_token=1.45e-4)
DECODE = Curve(base=0.02, per_item=1.45e-4, per_token=2.2e-7)
# Seconds to move an embedding, and keys and values, to another GPU: section 5.5.
MOVE_E, MOVE_P = 0.002, 0.008

VISION, P, D = "vision", "prefill", "decode"
STAGES = (VISION, P, D)
OPTIONS = {
    "E": (VISION,), "P": (P,), "D": (D,), "EP": (VISION, P), "ED": (VISION, D), "PD": (P, D), "EPD": STAGES,
}  # fmt: skip
NAIVE, ALL = "naive", "EPD"


class StageGoals(NamedTuple):
    """Goals in seconds, and ``slots``: concurrent sequences on an executor with prompts."""

    ttft: float = 4.0
    tbt: float = 0.08
    slots: int = 32

    @property
    def decode_slots(self) -> int:
        """Sequences on an executor without prompts.

        It is the most within the goal (algorithm 2, line 8).
        """
        return largest_within_goal(lambda rows: DECODE.seconds(rows, rows * (IMAGE + WORDS + 50)), self.tbt, 1, 512)


#: The goals of table 5 for LLaVA-1.5-7B on TextCaps, and its goals for all models and data.
TEXTCAPS = StageGoals()
TABLE_5 = (TEXTCAPS, StageGoals(8.0, 0.1), StageGoals(8.0, 0.3), StageGoals(8.0, 0.6))


@cache
def build_profile(setting: StageGoals) -> sim.Profile:
    """Return the simulated options under the goals of ``setting``."""
    many = {"components": {D: {"slots": setting.slots}}}
    decode = {"slots": setting.decode_slots, "step": _curve(DECODE), "steps": msgspec.to_builtins(CAPTION)}
    given = {
        "default": {
            "ttft": setting.ttft,
            "tbt": setting.tbt,
            "components": {
                VISION: {"kind": "encode", "slots": 16, "batch": _curve(ENCODE), "tokens": {"image": IMAGE}},
                P: {"kind": "prefill", "slots": 16, "batch": _curve(PREFILL)},
                D: {"kind": "decode", **decode},
            },
        },
        "options": {NAIVE: {"ttft": 0, "tbt": 0, **many}, "PD": many, ALL: many},
    }
    return sim.decode_profile(msgspec.json.encode(given))


def _curve(curve: Curve) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(curve)
    return found


class StageStop(NamedTuple):
    """A stop of a request: an option, and its components there."""

    option: str
    parts: tuple[str, ...]


class StagedShape(NamedTuple):
    """Replicas by option, and paths through them with their shares."""

    replicas: dict[str, int]
    ways: tuple[tuple[tuple[StageStop, ...], float], ...]


def monolith(option: str) -> StagedShape:
    return StagedShape({option: GPUS}, (((StageStop(option, STAGES),), 1.0),))


class StagedAgenda:
    """Events in order of their virtual seconds."""

    def __init__(self) -> None:
        self._next: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def at(self, when: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self._next, (when, next(self._numbers), what))

    def run(self) -> None:
        while self._next and not self._stopped:
            when, _, what = heapq.heappop(self._next)
            what(when)


class StagedReplica:
    """An executor: the device and lanes of the ``sim`` engine. ``open`` requests have work here."""

    def __init__(self, agenda: StagedAgenda, setting: StageGoals, option: str, parts: Sequence[str]) -> None:
        given = build_profile(setting).find_option(option)
        self._agenda = agenda
        self._busy = False
        self._device = device_of(given, 1.0)
        self._lanes = {
            part: lane_of(self._device, given, part, kind_of(part, given.find_component(part)), setting.slots)
            for part in parts
        }
        self.open = 0

    def put(self, part: str, work: SimWork, at: float) -> None:
        self._lanes[part].queue_work(work, at)
        self._go(at)

    def _go(self, at: float) -> None:
        if self._busy or (turn := self._device.next_turn(at)) is None:
            return
        self._busy = True
        self._agenda.at(at + turn.seconds, partial(self._over, turn))

    def _over(self, turn: DeviceTurn | CombinedTurn, at: float) -> None:
        self._device.finish_turn(turn, at, len(turn.ends))
        self._busy = False
        self._go(at)


class StagedRequest:
    """One request on its way."""

    def __init__(self, cluster: "StagedCluster", stages: Sequence[StageStop], tokens: int, arrival: float) -> None:
        self._cluster = cluster
        self._steps = [(stage.option, part) for stage in stages for part in stage.parts]
        self._tokens = tokens
        self.arrival = arrival
        self._here: StagedReplica | None = None
        self.times: list[float] = []
        self._next(0, arrival)

    def _next(self, index: int, at: float) -> None:
        option, part = self._steps[index]
        if index == 0 or self._steps[index - 1][0] != option:
            if self._here is not None:
                self._here.open -= 1
            self._here = min(self._cluster.replicas[option], key=lambda each: each.open)
            self._here.open += 1
            at += {0: 0.0, 1: MOVE_E}.get(index, MOVE_P)
        if self._here is not None:
            self._cluster.agenda.at(at, partial(self._put, self._here, index, part))

    def _put(self, here: StagedReplica, index: int, part: str, at: float) -> None:
        prompt = IMAGE + WORDS
        if part == D:
            answer = SimSequence(prompt, limit=self._tokens)
            answer.told = partial(self._on_token, answer)
            here.put(part, answer, at)
        else:
            here.put(part, SimWork(IMAGE if part == VISION else prompt, told=partial(self._next, index + 1)), at)

    def _on_token(self, answer: SimSequence, at: float) -> None:
        self.times.append(at)
        if answer.is_finished and self._here is not None:
            self._here.open -= 1
            self._cluster.note_done(self)

    @property
    def first_token(self) -> float:
        """Seconds to the first token."""
        return self.times[0] - self.arrival

    @property
    def token(self) -> float:
        """Mean seconds between two tokens."""
        return (self.times[-1] - self.times[0]) / max(1, len(self.times) - 1)

    def is_met(self, setting: StageGoals) -> bool:
        """Return True if the request was served in time."""
        # Times are sums of floats: a step of exactly the goal takes slightly longer.
        late = sum(after - before > setting.tbt + 1e-9 for before, after in pairwise(self.times))
        return self.times[0] - self.arrival <= setting.ttft and late <= (1 - MET) * (len(self.times) - 1)


class StagedCluster:
    """``shape`` with ``rate`` req/s for ``lasts`` seconds after warm-up. ``trace`` seeds its requests."""

    def __init__(self, shape: StagedShape, setting: StageGoals, rate: float, lasts: float, trace: int = 1) -> None:
        self.agenda = StagedAgenda()
        parts: dict[str, dict[str, None]] = {option: {} for option in shape.replicas}
        for way, _ in shape.ways:
            for stage in way:
                parts[stage.option].update(dict.fromkeys(stage.parts))
        self.replicas = {
            option: [StagedReplica(self.agenda, setting, option, tuple(parts[option])) for _ in range(number)]
            for option, number in shape.replicas.items()
            if parts[option]
        }
        self._requests: list[StagedRequest] = []
        self._sent = dict.fromkeys(range(len(shape.ways)), 0)
        self._shape, self._setting = shape, setting
        self._warm = WARM_UP_GOALS * setting.ttft
        self._observed = self._missed = 0
        self._allowed = inf
        draw, at = Draw("goodput", trace), 0.0
        while (at := at - log(draw.uniform()) / rate) < self._warm + lasts:
            self._observed += at >= self._warm
            self.agenda.at(at, partial(self._send, CAPTION.draw_size(draw)))

    def _send(self, tokens: int, at: float) -> None:
        """Send a request along the path furthest below its share."""
        behind = min(self._sent, key=lambda way: (self._sent[way] + 1) / self._shape.ways[way][1])
        self._sent[behind] += 1
        request = StagedRequest(self, self._shape.ways[behind][0], tokens, at)
        if at >= self._warm:
            self._requests.append(request)

    def note_done(self, request: StagedRequest) -> None:
        """Count a request that missed its goals; the run ends when too many did."""
        if request.arrival >= self._warm and not request.is_met(self._setting):
            self._missed += 1
            if self._missed > self._allowed:
                self.agenda.stop()

    def attainment(self) -> float:
        """Return the share of requests that were served in time."""
        self.agenda.run()
        return 1.0 - self._missed / self._observed if self._observed else 1.0

    def keeps_up(self) -> bool:
        """Return True if enough requests were served in time."""
        self._allowed = (1 - MET) * self._observed + 1e-9
        self.agenda.run()
        return self._missed <= self._allowed

    def mean_latencies(self) -> tuple[float, float]:
        """Return mean seconds to the first token, and between two tokens."""
        count = len(self._requests)
        return sum(each.first_token for each in self._requests) / count, sum(
            each.token for each in self._requests
        ) / count


class Replay(NamedTuple):
    """Requests that judge shapes: seconds of load after warm-up, precision in req/s per GPU, and the trace."""

    lasts: float = 60.0
    precision: float = 0.1
    trace: int = 1


def goodput(
    shape: StagedShape,
    setting: StageGoals = TEXTCAPS,
    replay: Replay = Replay(),  # noqa: B008 a constant
    beyond: float = 0.0,
) -> float:
    """Return the goodput in req/s per GPU: the highest multiple of the replay's precision.

    At this rate enough requests are in time. It is ``beyond`` if it is not higher.
    """
    precision = replay.precision

    def keeps_up(number: int) -> bool:
        rate = GPUS * number * precision
        return StagedCluster(shape, setting, rate, replay.lasts, replay.trace).keeps_up()

    low = round(beyond / precision)
    high = low + 1 if beyond else max(1, round(1.0 / precision))
    while keeps_up(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if keeps_up(middle):
            low = middle
        else:
            high = middle
    return low * precision
