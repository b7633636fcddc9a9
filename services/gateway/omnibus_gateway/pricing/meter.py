"""Usage of requests by the prices of the current plan."""

import asyncio
from collections.abc import Sequence
from functools import lru_cache

from omnibus.plan import CPU, DeploymentOption, Plan, PriceList
from omnibus.pricing import SECONDS_PER_HOUR, RequestUsage, StageRate, join_usages, stage_usage, sum_stages
from omnibus_gateway.dispatch.inflight import TEXT, InflightInvocation
from omnibus_gateway.pricing.cost_fit import CostFits, StageKey
from omnibus_gateway.pricing.quantities import SIZES, WORK, Estimates, add_quantities, apply_estimates
from omnibus_gateway.routing.router import Router

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
