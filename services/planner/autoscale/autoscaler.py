"""Planned models follow their load: what gateways tell of it is measured, judged, and planned for."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from omnibus.bus import Bus, Delivery, messages, subjects
from omnibus.cluster.desired import counts, starts
from omnibus.errors import OmnibusError, ProtocolError
from omnibus.plan import ModelPlan, Plan
from omnibus.settings import PlannerSettings
from services.planner.autoscale.load_window import LoadWindows
from services.planner.autoscale.policy import Adapt, Deployment, Goal, Rules, Scene, Verdict
from services.planner.autoscale.reasons import because
from services.planner.declared.planned_spec import GPUS
from services.planner.optimize.job import Planning
from services.planner.optimize.load import Loads, ModelLoad
from services.planner.optimize.result import Planned
from services.planner.rollout.rollout import Changes

if TYPE_CHECKING:  # see ``services.planner.optimize``
    from services.planner.optimize.planner import Planner

log = logging.getLogger(__name__)

#: Seconds between two looks at least, and for each second of CPU time that the last one took.
PAUSE, REST = 1.0, 10.0
#: Where a plan that follows the load says which one, in ``Plan.explain``.
LOAD = "load"


class _Found(NamedTuple):
    """Results of the planner for one load."""

    now: Deployment
    rerouted: Planned
    best: Planned
    seconds: float


class Follow:
    """Watches the load of the models in ``planning`` that adapt, and what ``changes`` make of their plans.

    What is to run instead is put into ``planning``; then ``want`` is told why.
    """

    def __init__(
        self,
        settings: PlannerSettings,
        changes: Changes,
        planning: Planning,
        want: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._changes = changes
        self._planning = planning
        self._want = want
        self._clock = clock
        self._windows = LoadWindows(settings.window, clock)
        self._heard = asyncio.Event()
        self._bus: Bus | None = None
        self._reconnects = 0
        self._planner: Planner | None = None
        self._adapt: Adapt | None = None
        self._wanted: Planned | None = None
        self._since = clock()  # when it was wanted, or came one step further
        self._epoch = 0  # the last step
        self._before: Loads = {}  # what was planned for
        self._load: Loads = {}
        self._spent = 0.0  # seconds of CPU time

    async def listen(self, bus: Bus) -> None:
        """Hear of the load from now on."""
        self._bus, self._reconnects = bus, bus.reconnects
        await bus.subscribe(subjects.event(subjects.LOAD), self._on_load)

    def _on_load(self, delivery: Delivery) -> None:
        try:
            self._windows.heard(messages.decode_load(delivery.data))
        except ProtocolError as error:
            log.warning("%s", error)
            return
        self._heard.set()

    def remember(self, plan: Plan | None) -> None:
        """Go on from ``plan``, which a planner before this one has made."""
        self._load = self._load or remembered(plan)

    @property
    def load(self) -> Loads:
        """Last load to plan for when models are declared anew; models of which nothing is known are left out."""
        return {name: load for name, load in self._load.items() if name in self._planning.adapting}

    async def run(self) -> None:
        """Look whenever there is news, and once in a window if not; until cancelled."""
        while True:
            try:
                await self.look()
            except OmnibusError as error:
                log.warning("the load is not followed for now: %s", error)
            await asyncio.sleep(max(PAUSE, REST * self._spent))
            try:
                async with asyncio.timeout(self._settings.window):
                    await self._heard.wait()
            except TimeoutError:  # nobody asks for anything, which may need fewer executors
                pass
            self._heard.clear()

    async def look(self) -> None:
        """Plan again if the load calls for it."""
        adapt, planner, plan = self._policy(), self._planner, self._changes.plan
        if planner is None or adapt is None or plan is None or self._deaf(adapt):
            return
        if self._changes.pinned or self._under_way(plan):
            adapt.changed()
            return
        loads = self._windows.loads()
        expected = adapt.expected(loads)
        if expected is None:
            return
        self._load, self._before = expected, self._before or _declared(planner, self._wanted, expected)
        running = {name: plan.models[name] for name in planner.models if name in plan.models}
        found = await asyncio.to_thread(_solve, planner, running, expected)
        self._spent = found.seconds
        if not self._holds(plan):
            return
        best, rerouted = (_deployment(planner, running, each) for each in (found.best, found.rerouted))
        verdict = adapt.judge(Scene(loads, found.now, rerouted, best))
        if verdict is Verdict.KEEP:
            return
        chosen = await _explained(found.best if verdict is Verdict.REPLAN else found.rerouted)
        if self._holds(plan):
            self._change(chosen, expected)
            adapt.changed()

    def _holds(self, plan: Plan) -> bool:
        """Return whether what was found beside ``plan`` was not found for something that is no longer so."""
        return self._planning.planned is self._wanted and plan is self._changes.plan

    def _policy(self) -> Adapt | None:
        """The one for what is planned now; None when nothing of it adapts."""
        planning = self._planning
        if planning.planned is not self._wanted:
            self._wanted, self._since = planning.planned, self._clock()
        if planning.planner is not self._planner:
            self._planner = planning.planner
            self._adapt = _adapt(self._planner, rules(self._settings), self.load, self._clock)
        return self._adapt

    def _deaf(self, adapt: Adapt) -> bool:
        """Return whether what gateways said may have been missed; what is heard from now on counts again."""
        bus = self._bus
        if bus is not None and bus.connected and bus.reconnects == self._reconnects:
            return False
        self._reconnects = bus.reconnects if bus is not None else 0
        self._windows.clear()
        adapt.lost()
        return True

    def _under_way(self, plan: Plan) -> bool:
        """Return whether executors of what is wanted may still start; what has been put off is not waited for."""
        wanted = self._wanted.models if self._wanted is not None else {}
        if all(plan.models.get(name) == model for name, model in wanted.items()):
            return False
        if plan.epoch != self._epoch:
            self._epoch, self._since = plan.epoch, self._clock()
        return self._clock() - self._since < self._settings.ready

    def _change(self, planned: Planned, load: Loads) -> None:
        reason, planning = because(load, self._before), self._planning
        log.info("%s: %s", reason, ", ".join(f"{name} {rate:.3g} req/s" for name, rate in planned.capacity.items()))
        planning.planned = msgspec.structs.replace(
            planned,
            models={**planning.planned.models, **planned.models},
            explain={**planned.explain, LOAD: msgspec.to_builtins(load)},
        )
        self._before, self._wanted, self._since = load, planning.planned, self._clock()
        self._want(reason)


def rules(settings: PlannerSettings) -> Rules:
    hold = settings.hold or 2 * settings.window
    return Rules(settings.window, settings.margin, hold, settings.cooldown, settings.least)


def remembered(plan: Plan | None) -> dict[str, ModelLoad]:
    """The load that ``plan`` was made for, when it followed the load; a planner that starts goes on from there."""
    try:
        return msgspec.convert(plan.explain.get(LOAD, {}), dict[str, ModelLoad]) if plan is not None else {}
    except msgspec.ValidationError:  # another build's
        return {}


def _adapt(planner: "Planner | None", rules: Rules, load: Loads, clock: Callable[[], float]) -> Adapt | None:
    """The policy for what ``planner`` plans; ``load`` is what it was planned for where it is not what was declared."""
    goals = {
        name: Goal(
            model.planned.goal == GPUS, model.planned.headroom, load[name].rate if name in load else model.planned.rate
        )
        for name, model in (planner.models if planner is not None else {}).items()
        if model.planned is not None and model.planned.adapt
    }
    if planner is None or not goals:
        return None
    return Adapt(goals, rules, max(planner.starts.values(), default=0.0), clock)


def _declared(planner: "Planner", planned: Planned | None, first: Loads) -> dict[str, ModelLoad]:
    """Return the load that ``planned`` was made for, by its own explanation; request sizes are those of ``first``."""
    told = planned.explain.get("planned", {}).get("models", {}) if planned is not None else {}
    return {
        name: ModelLoad(
            model.planned.rate if model.planned is not None else 0.0,
            {kind: each["rate"] for kind, each in told.get(name, {}).get("types", {}).items()},
            first[name].quantities if name in first else {},
        )
        for name, model in planner.models.items()
    }


def _solve(planner: "Planner", running: Mapping[str, ModelPlan], load: Loads) -> _Found:
    began = time.thread_time()
    now = Deployment(planner.capacity(running, load), _gpus(running))
    rerouted, best = planner.rerouted(running, load), planner.plan(load, running, explain=False)
    return _Found(now, rerouted, best, time.thread_time() - began)


async def _explained(planned: Planned) -> Planned:
    """With alternatives, which are looked for once it is taken."""
    if planned.why is None:
        return planned
    return msgspec.structs.replace(planned, explain=await asyncio.to_thread(planned.why), why=None)


def _deployment(planner: "Planner", running: Mapping[str, ModelPlan], planned: Planned) -> Deployment:
    there, news = counts(running), 0.0
    for kind, count in starts(running, planned.models).items():
        option = planned.models[kind.model].options[kind.option]
        fresh = count - there.get(kind, 0)
        news += fresh * max(1, option.gpus) * planner.starts.get((kind.model, kind.option), 0.0)
    return Deployment(planned.capacity, _gpus(planned.models), news)


def _gpus(models: Mapping[str, ModelPlan]) -> float:
    """GPUs of all executors, those on CPUs counted as one each."""
    return sum(
        option.replicas * max(1, option.gpus)
        for model in models.values()
        for option in model.options.values()
        if not option.of
    )
