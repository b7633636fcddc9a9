"""Cost of a request in GPU-seconds: expected when it comes, corrected when it is over.

Executors say in their heartbeats how many seconds each of their components has computed, and how many jobs that was.
Divided by the tokens of a job, as this gateway sees them, that is what a token costs; a batch is shared by those in it.
Until a component has been heard of, the model's profile says what a request of its type costs, and without one a token
counts as ``UNKNOWN`` seconds: then tenants share tokens.

What a request was expected to take is known from its own words (prompt, ``max_tokens``), what it took from the answer's
usage and the length of its sound. The mean of the two by request type is in the next expectation.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from omnibus.plan import ModelPlan, Plan
from omnibus.profile import ModelProfile
from services.gateway.dispatch.inflight import InflightInvocation
from services.gateway.dispatch.streams import ResultStream
from services.gateway.routing.assignment import Assignment
from services.gateway.routing.router import Router

#: Seconds of a token of which nothing is known.
DEFAULT_TOKEN_SECONDS = 1e-3
#: Seconds between two looks at what executors say.
POLL_SECONDS = 1.0
#: Part of the newest in means of what was seen.
_NEWEST_WEIGHT = 0.1
#: Codes of a second of speech, by which estimates of talkers and vocoders count.
_CODES_PER_SECOND = 50.0
_SPEECH_COMPONENTS = ("talker", "vocoder")
_SPLIT = ("prefill", "decode")


class RequestCost(NamedTuple):
    """Expected cost of one segment in GPU-seconds, and its tokens by node."""

    seconds: float
    tokens: tuple[float, ...]
    nodes: tuple[float, ...]  # GPU-seconds of each, before the correction of its type


class RequestCostModel:
    """Costs as one gateway knows them."""

    def __init__(self, router: Router, clock: Callable[[], float] = time.monotonic) -> None:
        self._router = router
        self._clock = clock
        self._looked = -POLL_SECONDS
        self._heard: dict[str, tuple[tuple[float, ...], tuple[int, ...]]] = {}
        self._jobs: dict[str, float] = {}  # GPU-seconds of a job, by unit task
        self._tokens: dict[str, float] = {}  # tokens of a job, by unit task
        self._ratio: dict[tuple[str, str], float] = {}  # of what was to what was expected, by model and type
        self.profiles: Mapping[str, ModelProfile] = {}

    def expected_cost(self, assignment: Assignment, work: Sequence[float]) -> RequestCost:
        """Return the expected cost of a graph; ``work`` is in tokens per node, as in ``Segment``."""
        if self._clock() >= self._looked + POLL_SECONDS:
            self._read_heartbeats()
        tokens = tuple(float(each) for each in work) or (1.0,) * len(assignment.nodes)
        known = [self._token_seconds(node.task) for node in assignment.nodes]
        planned = self._profiled_seconds(assignment) if None in known else 0.0
        if planned:
            whole = sum(tokens) or 1.0
            nodes = tuple(planned * each / whole for each in tokens)
        else:
            nodes = tuple(
                each * (DEFAULT_TOKEN_SECONDS if one is None else one) for each, one in zip(tokens, known, strict=True)
            )
        ratio = self._ratio.get((assignment.model, assignment.kind), 1.0)
        return RequestCost(sum(nodes) * ratio, tokens, nodes)

    def settle_cost(self, cost: RequestCost, running: InflightInvocation) -> float:
        """Return the cost of a finished segment, in GPU-seconds; the next ones like it are expected to cost as much."""
        invocation = running.invocation
        components = [node.component for node in invocation.nodes]
        took = actual_tokens(components, cost.tokens, running.streams)
        for node, tokens in zip(invocation.nodes, took, strict=True):
            self._tokens[node.task] = _moving_mean(self._tokens.get(node.task), tokens)
        seconds = sum(
            own * (now / was if was else 1.0) for own, was, now in zip(cost.nodes, cost.tokens, took, strict=True)
        )
        whole = sum(cost.nodes)
        if whole > 0:
            key = (invocation.model, invocation.type)
            self._ratio[key] = _moving_mean(self._ratio.get(key), seconds / whole)
        return seconds

    def _token_seconds(self, task: str) -> float | None:
        """GPU-seconds of a token in ``task``; None while that is not known."""
        seconds, tokens = self._jobs.get(task), self._tokens.get(task)
        return seconds / tokens if seconds is not None and tokens else None

    def _read_heartbeats(self) -> None:
        """Read what executors have computed since the last time."""
        self._looked = self._clock()
        plan = self._router.plan
        computed: dict[str, list[float]] = {}
        heard = {}
        for status in self._router.members.statuses():
            heard[status.id] = now = (status.busy, status.done)
            before = self._heard.get(status.id)
            if before is None or len(before[0]) != len(now[0]) or sum(now[1]) < sum(before[1]):
                continue  # new, or begun anew
            gpus = _gpu_count(plan, status.model, status.option)
            for index, task in enumerate(status.tasks[: len(status.busy)]):
                seen = computed.setdefault(task, [0.0, 0.0])
                seen[0] += gpus * (status.busy[index] - before[0][index])
                seen[1] += status.done[index] - before[1][index]
        self._heard = heard
        for task, (seconds, jobs) in computed.items():
            if jobs > 0 and seconds > 0:
                self._jobs[task] = _moving_mean(self._jobs.get(task), seconds / jobs)

    def _profiled_seconds(self, assignment: Assignment) -> float:
        """GPU-seconds of such a request by the profiles of its models; 0 where one has none."""
        plan = self._router.plan
        whole = 0.0
        for part in assignment.parts:
            profile = self.profiles.get(part.model)
            model = plan.models.get(part.model) if plan is not None else None
            seconds = profiled_seconds(profile, model, part.kind) if profile is not None and model is not None else 0.0
            if not seconds:
                return 0.0
            whole += seconds
        return whole


def actual_tokens(
    components: Sequence[str], tokens: Sequence[float], streams: Mapping[tuple[int, str], ResultStream]
) -> list[float]:
    """Tokens by node as the answer tells them; those of which it tells nothing are as expected."""
    took = list(tokens)
    for (node, _), stream in streams.items():
        usage = stream.closing.get("usage")
        if type(usage) is dict:
            count = sum(_token_count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
            group = _SPLIT if components[node] in _SPLIT else (components[node],)
            _scale_tokens(took, [index for index, name in enumerate(components) if name in group], count)
        rate = stream.first.data.get("rate") if stream.samples and stream.first is not None else None
        if isinstance(rate, int | float) and rate >= 1:  # it comes from engines: what is divided by it stays finite
            for name in _SPEECH_COMPONENTS:
                own = [index for index, each in enumerate(components) if each == name]
                _scale_tokens(took, own, _CODES_PER_SECOND * stream.samples / rate)
    return took


def profiled_seconds(profile: ModelProfile, model: ModelPlan, kind: str) -> float:
    """GPU-seconds of a request of type ``kind`` along the path that most of them go; 0: the profile does not say."""
    paths = model.types.get(kind, ())
    if not paths:
        return 0.0
    path = max(paths, key=lambda each: each.rate)
    whole = 0.0
    for option in dict.fromkeys(path.options.values()):
        measured = profile.options.get(option)
        if measured is None:
            return 0.0
        role = {component for component, runs in path.options.items() if runs == option}
        rows = [each for each in measured.work if set(each.components) == role and each.type in ("", kind)]
        if not rows:
            return 0.0
        whole += max(rows, key=lambda each: each.type).seconds * measured.gpus
    return whole


def _scale_tokens(took: list[float], nodes: Iterable[int], count: float) -> None:
    """Make the tokens of ``nodes`` ``count`` in all."""
    own = list(nodes)
    whole = sum(took[node] for node in own)
    for node in own:
        took[node] = count * took[node] / whole if whole else count / len(own)


def _token_count(value: object) -> float:
    return float(value) if type(value) is int and 0 < value < 1 << 32 else 0.0


def _moving_mean(before: float | None, newest: float) -> float:
    return newest if before is None else before + _NEWEST_WEIGHT * (newest - before)


def _gpu_count(plan: Plan | None, model: str, option: str) -> int:
    known = plan.models.get(model) if plan is not None else None
    spec = known.options.get(option) if known is not None else None
    return max(1, spec.gpus) if spec is not None else 1
