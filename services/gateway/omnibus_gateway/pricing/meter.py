"""Usage of requests by the prices of the current plan, and the headers that request or limit their price.

Sizes of a request are in the quantities of profiles: estimates first, then measurements. The seconds of stages by these
sizes are learned from finished requests.
"""

import asyncio
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from omnibus.errors import BadRequest
from omnibus.plan import CPU, DeploymentOption, Plan, PriceList
from omnibus.pricing import SECONDS_PER_HOUR, RequestUsage, StageRate, join_usages, stage_usage, sum_stages
from omnibus.profile import QUANTITIES, CostLine
from omnibus_gateway.dispatch.inflight import TEXT, InflightInvocation
from omnibus_gateway.dispatch.streams import ResultStream
from omnibus_gateway.routing.router import Router

USAGE_HEADER, QUOTE_HEADER, LIMIT_HEADER = b"x-omnibus-usage", b"x-omnibus-quote", b"x-omnibus-max-cost"
_YES, _NO = (b"1", b"true"), (b"", b"0", b"false")


class PriceOptions(NamedTuple):
    """Price options of a request.

    ``usage`` adds the usage to the answer. With ``quote``, the answer is the price, and the request does not run.
    ``limit`` is the highest expected cost, in the plan's currency.
    """

    usage: bool = False
    quote: bool = False
    limit: float | None = None

    @property
    def before(self) -> bool:
        """True if the price must be known before the request runs."""
        return self.quote or self.limit is not None


NO_PRICES = PriceOptions()


def read_price_options(headers: Mapping[bytes, bytes]) -> PriceOptions:
    """Read the headers. Raises ``BadRequest`` with the name of the invalid one."""
    if not (USAGE_HEADER in headers or QUOTE_HEADER in headers or LIMIT_HEADER in headers):
        return NO_PRICES
    return PriceOptions(_read_flag(headers, USAGE_HEADER), _read_flag(headers, QUOTE_HEADER), _read_limit(headers))


def refuse_price_options(headers: Mapping[bytes, bytes]) -> None:
    """Raise ``BadRequest`` for price headers on routes without prices."""
    if read_price_options(headers).before:
        name = (QUOTE_HEADER if QUOTE_HEADER in headers else LIMIT_HEADER).decode()
        raise BadRequest(f"{name} is only for single requests to models of the plan: omit it", param=name)


def _read_flag(headers: Mapping[bytes, bytes], name: bytes) -> bool:
    flag = headers.get(name, b"").strip().lower()
    if flag in _YES:
        return True
    if flag not in _NO:
        raise BadRequest(f"{name.decode()} must be 1 or 0, not {flag[:40].decode('latin-1')!r}", param=name.decode())
    return False


def _read_limit(headers: Mapping[bytes, bytes]) -> float | None:
    name, amount = LIMIT_HEADER.decode(), headers.get(LIMIT_HEADER, b"").strip()[:40].decode("latin-1")
    if not amount:
        return None
    try:
        limit = float(amount)
    except ValueError:
        limit = math.nan
    if not (math.isfinite(limit) and limit >= 0):
        raise BadRequest(f"{name} must be an amount in the plan's currency, such as 0.002, not {amount!r}", param=name)
    return limit


#: Limit of a quantity of one request, because quantities come from engines, which may be an app's code.
MAX_QUANTITY = 1 << 32

#: Estimated quantities of a request on arrival, by their indices in ``QUANTITIES``.
Estimates = Sequence[tuple[int, float]]

#: Sizes that predict the seconds of a stage: quantities, and the work of the stage's nodes. The composite task
#: estimates the work; requests other than chats have no other size.
SIZES = (*QUANTITIES, "work")
WORK = len(QUANTITIES)

_QUANTITY_INDEX = {name: place for place, name in enumerate(QUANTITIES)}
_SPEECH_INDEX = _QUANTITY_INDEX["speech_seconds"]


def apply_estimates(sizes: list[float], estimates: Estimates) -> None:
    """Replace the estimated ``sizes`` by the sums of their estimates; each medium adds a part."""
    for place, _ in estimates:
        sizes[place] = 0.0
    for place, value in estimates:
        sizes[place] += value


def add_quantities(sums: list[float], streams: Iterable[ResultStream]) -> None:
    """Add the quantities in ``streams``: tokens by the thinker's count, and seconds of audio."""
    for stream in streams:
        usage = stream.closing.get("usage")
        if type(usage) is dict:
            for name, value in usage.items():
                place = _QUANTITY_INDEX.get(name)
                if place is not None and type(value) is int and 0 < value < MAX_QUANTITY:
                    sums[place] += value
        if stream.samples and stream.first is not None:
            sums[_SPEECH_INDEX] += _audio_seconds(stream.samples, stream.first.data)


def _audio_seconds(samples: int, about: Mapping[str, Any]) -> float:
    rate = about.get("rate")  # only audio has a rate
    return samples / rate if isinstance(rate, int | float) and 1 <= rate < MAX_QUANTITY else 0.0


#: Factor of earlier observations at each new one.
_DECAY = 0.98
#: Number of observations after which a fit is used.
MIN_OBSERVATIONS = 8
#: Weight of the assumption that a size costs nothing, relative to the weight of its observations.
_RIDGE = 1e-6
#: Seconds between two requests to learn from: more would cost a busy gateway time.
LEARN_PERIOD_SECONDS = 0.02
#: Weight of the newest value in means.
_NEWEST_WEIGHT = 0.1
COMPLETION, SPEECH = QUANTITIES.index("completion_tokens"), QUANTITIES.index("speech_seconds")


class StageKey(NamedTuple):
    """A component in an option of a model: batches, and so seconds, differ between options.

    ``modalities`` are those that it encodes: only these affect its time.
    """

    model: str
    option: str
    component: str
    modalities: tuple[str, ...] = ()

    @property
    def columns(self) -> list[int]:
        """Indices in ``SIZES`` of the sizes that its seconds depend on."""
        if not self.modalities:
            return list(range(len(SIZES)))
        return [*(QUANTITIES.index(f"{modality}_tokens") for modality in self.modalities), WORK]


class StageFit:
    """Linear least-squares fit of the seconds of one stage, over recent requests."""

    def __init__(self, columns: Sequence[int] = range(len(SIZES))) -> None:
        self._columns = columns  # indices in ``SIZES``
        size = len(columns) + 1
        self._squares = np.zeros((size, size))
        self._products = np.zeros(size)
        self.count = 0

    def observe_job(self, sizes: Sequence[float], seconds: float) -> None:
        """Add a request of ``sizes``, ordered as ``SIZES``, that took ``seconds``."""
        row = self._select_row(sizes)
        self._squares = self._squares * _DECAY + np.outer(row, row)
        self._products = self._products * _DECAY + row * seconds
        self.count += 1

    def predict_seconds(self, sizes: Sequence[float]) -> float:
        """Return the seconds of a request of these ``sizes``, at least 0."""
        scale = np.sqrt(np.diag(self._squares))
        scale[scale == 0.0] = 1.0  # sizes that were never observed
        matrix = self._squares / np.outer(scale, scale) + _RIDGE * np.eye(len(scale))
        coefficients = np.linalg.solve(matrix, self._products / scale) / scale
        return max(0.0, float(coefficients @ self._select_row(sizes)))

    def _select_row(self, sizes: Sequence[float]) -> NDArray[np.float64]:
        return np.array([1.0, *[sizes[column] for column in self._columns]])


class CostFits:
    """Fits of one gateway: seconds by stage, and lengths of answers by model and request type."""

    def __init__(self, period: float = LEARN_PERIOD_SECONDS) -> None:
        self._period = period
        self._next = 0.0
        self._stages: dict[StageKey, StageFit] = {}
        self._answers: dict[tuple[str, str], list[float]] = {}  # mean tokens, and seconds of speech per token

    def take_turn(self) -> bool:
        """Return whether it is time to learn from another request."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._period
        return True

    def observe_stage(self, key: StageKey, sizes: Sequence[float], seconds: float) -> None:
        """Add a stage's ``seconds`` for ``sizes``, ordered as ``SIZES``."""
        fit = self._stages.get(key)
        if fit is None:
            fit = self._stages[key] = StageFit(key.columns)
        fit.observe_job(sizes, seconds)

    def observe_answer(self, model: str, kind: str, quantities: Sequence[float]) -> None:
        """Add the length of an answer to the means."""
        tokens, speech_seconds = quantities[COMPLETION], quantities[SPEECH]
        if not tokens:
            return
        newest = [tokens, speech_seconds / tokens]
        before = self._answers.get((model, kind), newest)
        self._answers[model, kind] = [
            each + _NEWEST_WEIGHT * (new - each) for each, new in zip(before, newest, strict=True)
        ]

    def expected_answer(self, model: str, kind: str, limit: float, *, whole: bool) -> tuple[float, float]:
        """Return the expected tokens, up to ``limit``, and seconds of speech. A ``whole`` answer reaches the limit."""
        tokens, speech_ratio = self._answers.get((model, kind), (limit, 0.0))
        length = limit if whole else min(limit, tokens)
        return length, speech_ratio * length

    def predict_stage(
        self, key: StageKey, sizes: Sequence[float], lines: Mapping[str, CostLine]
    ) -> tuple[float, str] | None:
        """Return the seconds of a stage and their source.

        The source is ``measured``, or ``profile`` for those by the ``lines`` of the model's profile. None if there is
        neither.
        """
        fit = self._stages.get(key)
        if fit is not None and fit.count >= MIN_OBSERVATIONS:
            return fit.predict_seconds(sizes), "measured"
        line = lines.get(key.component)
        if line is not None:
            return line.seconds(dict(zip(QUANTITIES, sizes[:WORK], strict=True))), "profile"
        return (fit.predict_seconds(sizes), "measured") if fit is not None else None


#: Timeout for the times of the last stages, if an answer includes its usage, in seconds.
REPORT_SECONDS = 1.0

_UNKNOWN = StageRate("", 1, None)


class UsageMeter:
    """Measures requests of the plan of ``router``."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._plan: Plan | None = None
        self._rates: dict[tuple[str, str], StageRate] = {}  # by model and option, of that plan
        #: Fits of the finished requests.
        self.fits = CostFits()

    def learn(self, running: InflightInvocation, estimates: Estimates, *, by_work: bool = False) -> None:
        """Learn from a finished request; ``estimates`` are its sizes on arrival.

        ``by_work`` is True for a request without sizes, the stages of which cost by their estimated work. Several
        answers to one prompt share its cost, so they do not represent requests with one answer.
        """
        if not (estimates or by_work) or not self.fits.take_turn() or not running.all_reported:
            return
        invocation = running.invocation
        answers = [output for _, output in invocation.outputs].count(TEXT)
        if answers > 1 or (answers and not estimates):
            return
        sizes = [0.0] * len(SIZES)
        if estimates:
            add_quantities(sizes, running.streams.values())
            self.fits.observe_answer(invocation.model, invocation.type, sizes)
        apply_estimates(sizes, estimates)  # as in a quote
        for key, (seconds, work) in self._sum_stages(running).items():
            sizes[WORK] = 0.0 if estimates else work
            self.fits.observe_stage(key, sizes, seconds)

    def stage_key(self, model: str, option: str, component: str) -> StageKey:
        """Return the key for the fits of ``component`` in ``option`` of ``model``."""
        model_plan = self._router.plan.models.get(model) if self._router.plan is not None else None
        encoders = model_plan.encoders if model_plan is not None else {}
        return StageKey(model, option, component, tuple(name for name, part in encoders.items() if part == component))

    def _sum_stages(self, running: InflightInvocation) -> dict[StageKey, tuple[float, float]]:
        """Return the seconds and estimated work of each stage of ``running``."""
        invocation, sums = running.invocation, dict[StageKey, tuple[float, float]]()
        for index, (node, option) in enumerate(zip(invocation.nodes, invocation.options, strict=True)):
            key = self.stage_key(node.model or invocation.model, option, node.component)
            seconds, work = sums.get(key, (0.0, 0.0))
            sums[key] = seconds + running.hops[index].computed, work + running.node_work[index]
        return sums

    @property
    def currency(self) -> str:
        """Currency of the plan's prices; "" if it has none."""
        plan = self._router.plan
        return plan.prices.currency if plan is not None else ""

    def find_rate(self, model: str, option: str) -> StageRate:
        """Return the rate of an executor of ``option``."""
        return self._plan_rate(self._router.plan, model, option)

    def _plan_rate(self, plan: Plan | None, model: str, option: str) -> StageRate:
        if plan is not self._plan:
            self._plan, self._rates = plan, {}
        rate = self._rates.get((model, option))
        if rate is None:
            rate = self._rates[model, option] = _option_rate(plan, model, option)
        return rate

    def _device_rate(self, rate: StageRate, executor: str) -> StageRate:
        """Return ``rate``, without a GPU if ``executor`` computes on the CPU."""
        member = self._router.members.get(executor)
        return _without_gpu(rate) if member is not None and member.status.device == CPU else rate

    def measure(self, running: InflightInvocation) -> RequestUsage:
        """Return the usage of ``running`` by the stages that have reported."""
        invocation, hops, plan = running.invocation, running.hops, self._router.plan
        stages, nbytes = [], 0
        if running.pull_log is not None:
            nbytes = sum([cost.nbytes for cost in running.pull_log.costs()])
        for index, (node, option) in enumerate(zip(invocation.nodes, invocation.options, strict=True)):
            hop = hops.get(index)
            if hop is None:
                continue
            rate = self._plan_rate(plan, node.model or invocation.model, option)
            if not rate.gpu:  # the plan has no type: the executor reports its device
                rate = self._device_rate(rate, hop.executor)
            stages.append(stage_usage(index, node.component, option, rate, hop.computed, hop.joules))
            if hop.pulls:
                nbytes += sum([cost.nbytes for cost in hop.pulls])
        for (index, _), (option, seconds) in running.unfinished.items():
            node = invocation.nodes[index]
            rate = self._plan_rate(plan, node.model or invocation.model, option)
            stages.append(stage_usage(index, node.component, option, rate, seconds))
        currency = plan.prices.currency if plan is not None else ""
        return sum_stages(stages, currency, nbytes, complete=len(hops) == len(invocation.nodes))

    async def measure_request(self, segments: Sequence[InflightInvocation]) -> RequestUsage:
        """Return the usage of a finished request; waits for the times of its last stages."""
        for running in segments:
            await _wait_reported(running)
        return join_usages(map(self.measure, segments))


@lru_cache(maxsize=64)
def _without_gpu(rate: StageRate) -> StageRate:
    return rate._replace(gpu=CPU)


async def _wait_reported(running: InflightInvocation) -> None:
    if running.all_reported or running.over:
        return
    report_event = asyncio.Event()
    running.on_settled = report_event.set
    try:
        async with asyncio.timeout(REPORT_SECONDS):
            await report_event.wait()
    except TimeoutError:
        pass  # the usage is marked as incomplete
    finally:
        running.on_settled = None


def _option_rate(plan: Plan | None, model: str, name: str) -> StageRate:
    option = _find_option(plan, model, name)
    if plan is None or option is None:
        return _UNKNOWN
    gpu, gpus = _gpu_type(option, plan.prices), max(1, option.gpus)
    price = plan.prices.per_hour.get(gpu) if plan.prices.currency else None
    return StageRate(gpu, gpus, None if price is None else price * gpus / SECONDS_PER_HOUR)


def _find_option(plan: Plan | None, model: str, name: str) -> DeploymentOption | None:
    """Return the option of the executors; a shared component is another model's."""
    model_plan = plan.models.get(model) if plan is not None else None
    option = model_plan.options.get(name) if model_plan is not None else None
    if option is None or not option.of:
        return option
    owner, _, lent = option.of.rpartition("/")
    return _find_option(plan, owner, lent)


def _gpu_type(option: DeploymentOption, prices: PriceList) -> str:
    """Return the GPU type of ``option``, else the only declared type, else ""."""
    if option.gpu or not option.gpus:
        return option.gpu or CPU
    types = [name for name in prices.per_hour if name != CPU]
    return types[0] if len(types) == 1 else ""
