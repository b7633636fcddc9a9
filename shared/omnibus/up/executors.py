"""Executors of the plan: starts and stops them when the plan changes."""

import asyncio
from collections.abc import Awaitable, Callable

from omnibus.cluster.desired import ID
from omnibus.cluster.presence import GatewayPlans, ReadyExecutors
from omnibus.errors import OmnibusError, ProtocolError, StoreUnavailable
from omnibus.plan import Plan
from omnibus.process.logs import Log
from omnibus.process.spec import ProcessSpec
from omnibus.store import Store
from omnibus.up.executor_specs import reconcile_specs
from omnibus.up.role_switcher import RoleSwitcher
from omnibus.up.supervisor import Supervisor

READY_TIMEOUT_SECONDS = 120.0  # seconds to wait for an executor to load before those that it replaces drain
PLAN_WAIT_SECONDS = 5.0  # seconds to wait for gateways to apply a new plan before executors of the old one drain
RETRY_PAUSE_SECONDS = 1.0  # seconds until the next attempt to read the plan, or to start failed executors
RECHECK_SECONDS = 60.0  # seconds between two checks for executors that failed for good before they were ready once


class Executors:
    """Runs the executors of the current and the staged plan. Other executors drain and end.

    Unchanged executors are not touched. New executors are ready before old ones begin to drain, and all gateways have
    switched to the new plan by then. ``make`` returns the processes of plans by name, with ``ID`` in their environment.
    With ``roles``, an executor that would end takes the role of one that would start, if it can.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        log: Log,
        make: Callable[..., dict[str, ProcessSpec]],
        ready: ReadyExecutors | None = None,
        gateways: GatewayPlans | None = None,
        roles: RoleSwitcher | None = None,
    ) -> None:
        self._roles = roles
        self._supervisor = supervisor
        self._log = log
        self._make = make
        self._ready = ready
        self._gateways = gateways
        self._plan: Plan | None = None
        self._specs: dict[str, ProcessSpec] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._ending: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()

    async def start(self, plan: Plan, store: Store) -> None:
        """Start the executors of ``plan``, then follow the plans of ``store``. Raises if the first start fails."""
        self._plan, self._specs = plan, self._make(plan)
        await self._reconcile_executors(first=True)
        self._tasks = [asyncio.create_task(work) for work in (self._follow_plans(store), self._run_reconciler())]
        for task in self._tasks:
            task.add_done_callback(self._on_task_done)

    def confirm_ready(self) -> None:
        """Confirm the executors that report ready on the bus. The supervisor then restarts them forever."""
        ready = self._ready.ready_ids() if self._ready is not None else set()
        for name, spec in self._supervisor.specs.items():
            if spec.env.get(ID) in ready:
                self._supervisor.confirm(name)

    async def close(self) -> None:
        """Stop following plans. The supervisor handles the running and the draining executors."""
        tasks = [*self._tasks, *self._leaving.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow_plans(self, store: Store) -> None:
        async for stand in store.plan_changes():
            if not stand.epoch:  # the store lost its data: change nothing until the planner writes again
                continue
            plan = await self._read_plan(store.plan, stand.epoch)
            next_plan = await self._read_plan(store.staged_plan) if stand.staged else None
            self._plan = plan or self._plan
            self._specs = self._make(*(each for each in (self._plan, next_plan) if each is not None))
            self._changed.set()

    async def _read_plan(self, read: Callable[..., Awaitable[Plan | None]], *epoch: int) -> Plan | None:
        """Return the current or the staged plan. Returns None if the plan is lost or of another build."""
        while True:
            try:
                return await read(*epoch)
            except StoreUnavailable:  # a change is announced once, so retry
                await asyncio.sleep(RETRY_PAUSE_SECONDS)
            except ProtocolError as error:
                self._log.write_line("executors", f"{f'epoch {epoch[0]}' if epoch else 'staged'}: {error}")
                return None

    async def _run_reconciler(self) -> None:
        while True:
            try:
                async with asyncio.timeout(RECHECK_SECONDS):
                    await self._changed.wait()
            except TimeoutError:  # retry executors that failed for good
                pass
            self._changed.clear()
            try:
                await self._reconcile_executors()
            except OmnibusError as error:
                self._log.write_line("executors", f"{error}; trying again")
                await asyncio.sleep(RETRY_PAUSE_SECONDS)
                self._changed.set()

    async def _reconcile_executors(self, first: bool = False) -> None:
        """Start missing executors, then end those that the plans do not need. A name that is ending is still in use."""
        there = {name: spec for name, spec in self._supervisor.specs.items() if ID in spec.env}
        unchanged_names, fresh = reconcile_specs(self._specs, there, self._ending, vital=first)
        for name in unchanged_names & self._leaving.keys():
            self._leaving.pop(name).cancel()  # the plan needs it again, and it has not begun to end
        leaving = {
            name: spec for name, spec in there.items() if name not in unchanged_names and name not in self._ending
        }
        fresh, switched_names = await self._switch_roles(fresh, leaving)
        for name in switched_names & self._leaving.keys():
            self._leaving.pop(name).cancel()
        for name in there.keys() - unchanged_names - switched_names - self._leaving.keys():
            self._leaving[name] = asyncio.create_task(self._drain_executor(name, [spec.env[ID] for spec in fresh]))
        await self._supervisor.add(*fresh)

    async def _switch_roles(
        self, fresh: list[ProcessSpec], leaving: dict[str, ProcessSpec]
    ) -> tuple[list[ProcessSpec], set[str]]:
        """Make executors that are ``leaving`` take the roles of ``fresh`` ones.

        Returns the specs that are still to start, and the names of those with a new role.
        """
        if self._roles is None:
            return fresh, set()
        left, switched_names = list[ProcessSpec](), set[str]()
        for spec in fresh:
            new_spec = await self._roles.switch({n: one for n, one in leaving.items() if n not in switched_names}, spec)
            if new_spec is None:
                left.append(spec)
            else:
                self._supervisor.change_spec(new_spec)
                switched_names.add(new_spec.name)
        return left, switched_names

    async def _drain_executor(self, name: str, successors: list[str]) -> None:
        await self._wait_until_replaced(name, successors)
        self._ending.add(name)
        self._log.write_line(name, "ends: it is no longer in the plan")
        try:
            await self._supervisor.remove(name)
        finally:
            self._ending.discard(name)
            self._leaving.pop(name, None)
        self._changed.set()  # the plan may need it again

    async def _wait_until_replaced(self, name: str, successors: list[str]) -> None:
        """Wait until executor ``name`` is no longer needed. The waits are limited in time."""
        if successors and self._ready is not None and not await self._ready.wait_for(successors, READY_TIMEOUT_SECONDS):
            self._log.write_line(name, f"its successors are not ready after {READY_TIMEOUT_SECONDS:g} s")
        if self._gateways is not None and self._plan is not None:
            await self._gateways.wait_for_plan(self._plan.created, PLAN_WAIT_SECONDS)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._log.write_line("executors", f"no longer following plans: {task.exception()!r}")
