"""Separate stack that deploys and measures one plan after the other."""

import asyncio
import json
import os
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from omnibus.cluster.presence import GatewayPlans
from omnibus.errors import DeadlineExceeded, StageUnavailable
from omnibus.plan import ModelPlan, Plan
from omnibus.process.logs import Log
from omnibus.profiling.experiments import Trial, trial_declarations
from omnibus.profiling.measured_model import Subject
from omnibus.profiling.monitor import ExecutorMonitor
from omnibus.settings import StoreSettings
from omnibus.store import Store
from omnibus.up.stack import Stack

#: Declarations without models, with which the stack begins, so that the profiler sees each executor start.
NO_MODELS = '{"models": {}}'
#: Ends of an executor after which it counts as one that does not start.
MAX_EXITS = 3
#: Seconds between two checks that executors are still restarted.
LOOK_SECONDS = 1.0
#: The system is measured under full load: requests wait as long as a gateway allows.
FULL_LOAD = {"OMNIBUS_GATEWAY_DEADLINE": "600", "OMNIBUS_GATEWAY_QUEUE_SECONDS": "600"}
PLAN_WAIT_SECONDS = 10.0  # seconds that the gateway may take to apply a new plan
READY_TIMEOUT_SECONDS = 60.0  # seconds that it may take to see its executors


class NotStarted(StageUnavailable):
    """An executor of the plan does not start; the message has its name and its last log line."""

    code = "not_started"


class DeployedTrial(NamedTuple):
    """The current plan. ``executors`` maps id to option; ``under`` is the id of the measured executor."""

    executors: dict[str, str]
    under: str
    pid: int


class Testbed:
    """Runs services in ``async with Testbed(subject, ...) as house``; ``deploy`` replaces executors."""

    def __init__(self, subject: Subject, log: Log, env: Mapping[str, str], start_within: float) -> None:
        self._subject = subject
        self._log = log
        self._start_within = start_within
        self._stack = Stack(NO_MODELS, log=log, env=service_environment(env, start_within), passing=True)
        self._exits = AsyncExitStack()
        #: By option, the fewest seconds from a plan being staged to its executor being ready.
        self.starts: dict[str, float] = {}

    async def __aenter__(self) -> "Testbed":
        try:
            await self._exits.enter_async_context(self._stack)
            self._store = Store(StoreSettings(url=self._stack.valkey.url))
            self._exits.push_async_callback(self._store.close)
            self.hearing = ExecutorMonitor(self._stack.bus)
            self._gateways = GatewayPlans()
            await self.hearing.listen()
            await self._gateways.listen(self._stack.bus)
        except BaseException:
            await self._exits.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exits.aclose()

    @property
    def stack(self) -> Stack:
        return self._stack

    async def deploy(self, trial: Trial) -> DeployedTrial:
        """Make ``trial`` the plan and wait until it serves. Raises ``NotStarted``."""
        before = {*self._ready_executors(trial)}
        ends = {name: self.hearing.end_count(self._subject.name, name) for name in trial.options}
        await asyncio.to_thread(
            _replace_json, self._stack.directory / "models.json", trial_declarations(self._subject, trial)
        )
        staged_at = await self._wait_for_swap(trial, ends)
        # The previous plan may have had more replicas: these must not count as part of this one.
        await self.hearing.wait_until(
            lambda: all(self._replica_count(name) <= each.replicas for name, each in trial.options.items()),
            READY_TIMEOUT_SECONDS,
        )
        executors = self._ready_executors(trial)
        for id in executors.keys() - before if staged_at else ():
            took = max(0.0, self.hearing.ready_since(id) - staged_at)
            self.starts[executors[id]] = min(took, self.starts.get(executors[id], took))
        status = self.hearing.ready_executors(self._subject.name, trial.option)[0]
        return DeployedTrial(executors, status.id, status.pid)

    def _ready_executors(self, trial: Trial) -> dict[str, str]:
        """Return the ready executors of ``trial``, id to option."""
        return {
            each.id: name for name in trial.options for each in self.hearing.ready_executors(self._subject.name, name)
        }

    async def _wait_for_swap(self, trial: Trial, ends: Mapping[str, int]) -> float:
        """Wait until the plan matches ``trial`` and executors are ready. Returns when it was staged, or 0."""
        watch = asyncio.ensure_future(self._watch_failures(trial, ends))
        change = asyncio.ensure_future(self._follow_change(trial))
        try:
            async with asyncio.timeout(self._start_within + PLAN_WAIT_SECONDS):
                await asyncio.wait({watch, change}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            missing = [name for name in trial.options if not self._is_ready(trial, name)]
            raise NotStarted(f"{self._executors_text(missing)} not ready within {self._start_within:g} s") from None
        finally:
            for task in (watch, change):
                task.cancel()
            await asyncio.gather(watch, change, return_exceptions=True)
        if watch.done() and not watch.cancelled():
            raise watch.result()
        return change.result()

    async def _follow_change(self, trial: Trial) -> float:
        staged_at = 0.0
        async for stand in self._store.plan_changes():
            if stand.staged and not staged_at:
                staged_at = time.monotonic()
            if stand.staged or not stand.epoch:
                continue
            plan = await self._store.plan(stand.epoch)
            if plan is not None and _matches_trial(plan, self._subject.name, trial):
                await self._wait_until_serving(plan, trial)
                break
        return staged_at

    async def _wait_until_serving(self, plan: Plan, trial: Trial) -> None:
        """Wait until the gateway applies ``plan`` and sees its executors."""
        if not await self._gateways.wait_for_plan(plan.created, PLAN_WAIT_SECONDS):
            raise DeadlineExceeded(f"the gateway does not apply plan epoch {plan.epoch} after {PLAN_WAIT_SECONDS:g} s")
        await self._stack.wait_until_ready(READY_TIMEOUT_SECONDS)
        if not await self.hearing.wait_until(
            lambda: all(self._is_ready(trial, name) for name in trial.options), READY_TIMEOUT_SECONDS
        ):
            raise NotStarted(
                f"{self._executors_text([n for n in trial.options if not self._is_ready(trial, n)])} not ready"
            )

    async def _watch_failures(self, trial: Trial, ends: Mapping[str, int]) -> NotStarted:
        """Return the error once an executor ends repeatedly instead of becoming ready."""
        name = ""

        def is_failing() -> bool:
            nonlocal name
            for name in trial.options:
                exit_count = self.hearing.end_count(self._subject.name, name) - ends[name]
                limit = MAX_EXITS if self._is_supervised(name) else 1
                if exit_count >= limit and not self._is_ready(trial, name):
                    return True
            return False

        give_up = time.monotonic() + self._start_within + READY_TIMEOUT_SECONDS
        while time.monotonic() < give_up and not await self.hearing.wait_until(is_failing, LOOK_SECONDS):
            pass
        lines = self._log.tail(f"{self._subject.name}/{name}").splitlines()
        words = [line.strip() for line in lines[1:] if line.strip() and not line.strip().startswith("restarting")]
        return NotStarted(f"an executor of option {name} does not start: {_last_message(words)}")

    def _is_supervised(self, name: str) -> bool:
        """Return whether executors of option ``name`` are restarted: those with invalid settings are not."""
        own = f"{self._subject.name}/{name}/"
        return any(f"{each}/".startswith(own) for each in self._stack.supervisor.specs)

    def _is_ready(self, trial: Trial, name: str) -> bool:
        option = trial.options[name]
        if option.of:
            return True
        return self._replica_count(name) >= option.replicas

    def _replica_count(self, name: str) -> int:
        return len(self.hearing.ready_executors(self._subject.name, name))

    def _executors_text(self, options: list[str]) -> str:
        return f"executors of {', '.join(options) or 'the plan'} are"


def service_environment(env: Mapping[str, str], start_within: float) -> dict[str, str]:
    """Return ``env`` with the settings for full load.

    This process's environment overrides those. Executors may take ``start_within`` seconds to start.
    """
    variables = {**FULL_LOAD, "OMNIBUS_PLANNER_READY": f"{start_within:g}"}
    return {**{name: value for name, value in variables.items() if name not in os.environ}, **env}


def _matches_trial(plan: Plan, name: str, trial: Trial) -> bool:
    model = plan.models.get(name)
    return (
        model is not None
        and _replica_counts(model) == {each: option.replicas for each, option in trial.options.items()}
        and all(trial.path_name(path, model.components) in _path_names(model) for path in trial.paths)
    )


def _replica_counts(model: ModelPlan) -> dict[str, int]:
    return {name: option.replicas for name, option in model.options.items()}


def _path_names(model: ModelPlan) -> set[str]:
    """Return the names of paths of the widest planned request type."""
    widest = max(model.types, key=lambda kind: kind.count("+"))
    return {path.name for path in model.types[widest]}


def _last_message(words: list[str]) -> str:
    """Return the last log message of an ended process, without its traceback."""
    messages = [line for line in words if not line.startswith(("ended", "given up", "Traceback", "File "))]
    return messages[-1].rpartition(" ERROR ")[2] if messages else "it printed nothing"


def _replace_json(path: Path, document: Any) -> None:
    """Write ``document`` atomically."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(document))
    draft.replace(path)
