"""Executors by the plan: which processes it asks for, and what starts and stops when it changes."""

import asyncio
import os
from collections.abc import Callable, Mapping

from omnibus.bus import subjects
from omnibus.errors import OmnibusError, StoreUnavailable
from omnibus.plan import ModelPlan, Plan
from omnibus.settings import ServiceSettings, load
from omnibus.store import Store
from omnibus.up import sprout
from omnibus.up.logs import Log
from omnibus.up.nursery import suits
from omnibus.up.ready import ReadyExecutors
from omnibus.up.spec import ROOT, ProcessSpec, python
from omnibus.up.supervisor import Supervisor

#: The variable that tells an executor its id.
ID = "OMNIBUS_EXECUTOR_ID"
CLOSES_WITHIN = 5.0  # seconds that a process may take to end after it has drained
READY_WITHIN = 120.0  # seconds that an executor may take to load before those that it replaces leave without it
AGAIN = 1.0  # seconds until the next attempt to read the plan, or to start what did not start


def specs(plan: Plan, env: Mapping[str, str], nursery: str = "") -> dict[str, ProcessSpec]:
    """The processes that ``plan`` asks for, by name; those of a shared option belong to the model that lends it.

    ``env`` is the environment of all of them. ``nursery`` is the socket of one, which bears those that it can.
    """
    found = [
        _spec(name, model, option, replica, env, nursery)
        for name, model in plan.models.items()
        for option, deployed in model.options.items()
        if not deployed.of
        for replica in range(deployed.replicas)
    ]
    return {spec.name: spec for spec in found}


def grace(env: Mapping[str, str]) -> float:
    """Seconds between TERM and KILL that let a service with the environment ``env`` drain and close."""
    return load(ServiceSettings, {**os.environ, **env}).drain + CLOSES_WITHIN


def _spec(name: str, model: ModelPlan, option: str, replica: int, env: Mapping[str, str], nursery: str) -> ProcessSpec:
    deployed = model.options[option]
    env = {**_identity(name, model, option, replica), **env}
    if deployed.engine:
        env["OMNIBUS_EXECUTOR_ENGINE"] = deployed.engine
    module = f"services.{deployed.service}"
    forked = bool(nursery) and suits({**os.environ, **env})
    named = f"{name}/{option}/{replica}" if replica else f"{name}/{option}"  # the same however many there are
    return ProcessSpec(
        f"{named}@{model.origin[:4]}" if model.origin else named,
        sprout.command(nursery, module) if forked else python(module),
        env=env,
        cwd=ROOT,
        after=("nats", "sidecar", "nursery") if forked else ("nats", "sidecar"),
        vital=not model.apps,  # an app that cannot run must not end what others use
        grace=grace(env),
    )


def _identity(name: str, model: ModelPlan, option: str, replica: int) -> dict[str, str]:
    components = model.options[option].components
    code = f"-{model.origin[:4]}" if model.origin else ""  # two versions may run at once
    identity = {
        "ID": subjects.token(f"{name}-{option}-{replica}{code}"),
        "MODEL": name,
        "FAMILY": model.family,
        "CHECKPOINT": model.checkpoint,
        "CONTEXT": str(model.context),
        "OPTION": option,
        "COMPONENTS": ",".join(components),
    }
    if all(component in model.tasks for component in components):
        identity["TASKS"] = ",".join(model.tasks[component] for component in components)
    return {f"OMNIBUS_EXECUTOR_{key}": value for key, value in identity.items()}


class Executors:
    """Runs the executors that the current plan asks for: starts what appears, drains and ends what disappears.

    What did not change is left alone. What appears is ready before what disappears begins to drain; only a
    successor of the same name has to wait for its predecessor's end. ``make`` gives the processes of a plan
    by name, with ``ID`` in their environment.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        log: Log,
        make: Callable[[Plan], dict[str, ProcessSpec]],
        ready: ReadyExecutors | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._log = log
        self._make = make
        self._ready = ready
        self._wanted: dict[str, ProcessSpec] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()

    async def begin(self, plan: Plan, store: Store) -> None:
        """Start what ``plan`` asks for, or raise; from then on follow the plans of ``store``."""
        self._wanted = self._make(plan)
        await self._settle()
        self._tasks = [asyncio.create_task(work) for work in (self._follow(store), self._keep())]
        for task in self._tasks:
            task.add_done_callback(self._stopped)

    async def close(self) -> None:
        """Follow no longer. What runs, and what is still ending, is left to the supervisor."""
        tasks = [*self._tasks, *self._leaving.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, store: Store) -> None:
        async for epoch in store.swaps():
            plan = await self._read(store, epoch)
            if plan is not None:
                self._wanted = self._make(plan)
                self._changed.set()

    async def _read(self, store: Store, epoch: int) -> Plan | None:
        """The plan of ``epoch``; None when the store has lost it or it cannot be read: then all stays as it is."""
        while epoch:
            try:
                return await store.plan(epoch)
            except StoreUnavailable:  # an epoch is announced once, so stay with it
                await asyncio.sleep(AGAIN)
            except OmnibusError as error:
                self._log.line("executors", f"plan epoch {epoch}: {error}")
                break
        return None

    async def _keep(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._settle()
            except OmnibusError as error:
                self._log.line("executors", f"{error}; trying again")
                await asyncio.sleep(AGAIN)
                self._changed.set()

    async def _settle(self) -> None:
        """Start what is not there, then end what is not wanted. A name that is leaving is still there."""
        there = {name: spec for name, spec in self._supervisor.specs.items() if ID in spec.env}
        fresh = [spec for name, spec in self._wanted.items() if name not in there]
        going = [name for name, spec in there.items() if self._wanted.get(name) != spec and name not in self._leaving]
        for name in going:
            successors = [] if name in self._wanted else [spec.env[ID] for spec in fresh]
            self._leaving[name] = asyncio.create_task(self._leave(name, successors))
        await self._supervisor.add(*fresh)

    async def _leave(self, name: str, successors: list[str]) -> None:
        if successors and self._ready is not None and not await self._ready.wait(successors, READY_WITHIN):
            self._log.line(name, f"its successors are not ready after {READY_WITHIN:g} s")
        if self._supervisor.specs.get(name) == self._wanted.get(name):
            self._leaving.pop(name)  # a later plan wants it as it is
            return
        self._log.line(name, "leaves: the plan does not ask for it any more")
        await self._supervisor.remove(name)
        del self._leaving[name]
        self._changed.set()  # it may be wanted again, or anew

    def _stopped(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._log.line("executors", f"the plan is not followed any more: {task.exception()!r}")
