"""Cost of a request in GPU-seconds: expected on arrival, known at the end.

Executors report the engine seconds of each node of a request, which are its cost. The cost of a node divided by its
tokens is the expected cost of a token the next time. Until a component has reported, the model's profile contains the
cost of a request of its type. Without a profile, a token counts as ``DEFAULT_TOKEN_SECONDS``.

The expectation of a request follows from its parameters (prompt, ``max_tokens``). A correction is learned for each
tenant and type: the mean of the actual cost over the expected one. So the requests of one tenant do not change the
expected cost of another's.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from omnibus.graph import Invocation
from omnibus.plan import SPEECH_COMPONENTS, ModelPlan
from omnibus.profile import ModelProfile
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.dispatch.streams import ResultStream
from omnibus_gateway.routing.assignment import Assignment
from omnibus_gateway.routing.router import Router

#: Seconds of a token without any measurement.
DEFAULT_TOKEN_SECONDS = 1e-3
#: Weight of the newest value in moving means.
_NEWEST_WEIGHT = 0.1
#: Codes of a second of speech, by which estimates of talkers and vocoders count.
_CODES_PER_SECOND = 50.0
_SPLIT = ("prefill", "decode")
#: Tenants, with models and types, whose corrections are remembered: the most recent ones.
_MAX_RATIOS = 4096


class RequestCost(NamedTuple):
    """Expected cost of one segment in GPU-seconds, and its tokens by node."""

    seconds: float
    tokens: tuple[float, ...]
    nodes: tuple[float, ...]  # GPU-seconds of each, before the correction of its type


class RequestCostModel:
    """Cost model of one gateway."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._token_seconds: dict[str, float] = {}  # GPU-seconds of a token, by unit task
        self._ratios: OrderedDict[tuple[str, str, str], float] = OrderedDict()  # by tenant, model and type
        self.profiles: Mapping[str, ModelProfile] = {}

    def expected_cost(self, assignment: Assignment, work: Sequence[float], tenant: str = "") -> RequestCost:
        """Return the expected cost of a graph of ``tenant``; ``work`` is in tokens per node, as in ``Segment``."""
        tokens = tuple(float(each) for each in work) or (1.0,) * len(assignment.nodes)
        token_seconds = [self._token_seconds.get(node.task) for node in assignment.nodes]
        planned_seconds = self._profiled_seconds(assignment) if None in token_seconds else 0.0
        if planned_seconds:
            whole = sum(tokens) or 1.0
            nodes = tuple(planned_seconds * each / whole for each in tokens)
        else:
            nodes = tuple(
                each * (DEFAULT_TOKEN_SECONDS if one is None else one)
                for each, one in zip(tokens, token_seconds, strict=True)
            )
        ratio = self._ratios.get((tenant, assignment.model, assignment.kind), 1.0)
        return RequestCost(sum(nodes) * ratio, tokens, nodes)

    def learn(self, cost: RequestCost, running: InflightInvocation, seconds: float, tenant: str = "") -> float:
        """Learn from a segment of ``tenant`` that has used ``seconds`` of GPUs; return its charge.

        The charge is ``seconds``, or the expected cost if its executors do not report.
        """
        if running.failure is not None or not running.all_reported:
            has_times = running.hops or running.unfinished or not running.accepted
            return seconds if has_times else cost.seconds
        invocation, hops = running.invocation, running.hops
        took = actual_tokens([node.component for node in invocation.nodes], cost.tokens, running.streams)
        if not seconds:
            scaled_costs = zip(cost.nodes, cost.tokens, took, strict=True)
            return sum(own * (now / was if was else 1.0) for own, was, now in scaled_costs)
        whole = sum(hop.computed for hop in hops.values())
        for index, (node, tokens) in enumerate(zip(invocation.nodes, took, strict=True)):
            if tokens > 0 and hops[index].computed > 0:
                one = seconds * hops[index].computed / whole / tokens
                self._token_seconds[node.task] = _moving_mean(self._token_seconds.get(node.task), one)
        self._correct(tenant, invocation, seconds, sum(cost.nodes))
        return seconds

    def _correct(self, tenant: str, invocation: Invocation, seconds: float, expected_seconds: float) -> None:
        key = (tenant, invocation.model, invocation.type)
        if expected_seconds > 0:
            self._ratios[key] = _moving_mean(self._ratios.get(key), seconds / expected_seconds)
            self._ratios.move_to_end(key)
            if len(self._ratios) > _MAX_RATIOS:
                self._ratios.popitem(last=False)

    def _profiled_seconds(self, assignment: Assignment) -> float:
        """Return the GPU-seconds by the profiles of the models; 0 if any is missing."""
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
    """Return the tokens by node that the answer reports; others are as expected."""
    took = list(tokens)
    for (node, _), stream in streams.items():
        usage = stream.closing.get("usage")
        if type(usage) is dict:
            count = sum(_token_count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
            group = _SPLIT if components[node] in _SPLIT else (components[node],)
            _scale_tokens(took, [index for index, name in enumerate(components) if name in group], count)
        rate = stream.first.data.get("rate") if stream.samples and stream.first is not None else None
        if isinstance(rate, int | float) and rate >= 1:  # engines report it: the quotient must stay finite
            for name in SPEECH_COMPONENTS:
                own = [index for index, each in enumerate(components) if each == name]
                _scale_tokens(took, own, _CODES_PER_SECOND * stream.samples / rate)
    return took


def profiled_seconds(profile: ModelProfile, model: ModelPlan, kind: str) -> float:
    """Return the GPU-seconds of type ``kind`` on its main path; 0 if not profiled."""
    paths = model.types.get(kind, ())
    if not paths:
        return 0.0
    path = max(paths, key=lambda each: each.rate)
    whole = 0.0
    for option in dict.fromkeys(path.options.values()):
        option_profile = profile.options.get(option)
        if option_profile is None:
            return 0.0
        role = {component for component, runs in path.options.items() if runs == option}
        rows = [each for each in option_profile.work if set(each.components) == role and each.type in ("", kind)]
        if not rows:
            return 0.0
        whole += max(rows, key=lambda each: each.type).seconds * option_profile.gpus
    return whole


def _scale_tokens(took: list[float], nodes: Iterable[int], count: float) -> None:
    """Scale the tokens of ``nodes`` to ``count`` in total."""
    own = list(nodes)
    whole = sum(took[node] for node in own)
    for node in own:
        took[node] = count * took[node] / whole if whole else count / len(own)


def _token_count(value: object) -> float:
    return float(value) if type(value) is int and 0 < value < 1 << 32 else 0.0


def _moving_mean(before: float | None, newest: float) -> float:
    return newest if before is None else before + _NEWEST_WEIGHT * (newest - before)
