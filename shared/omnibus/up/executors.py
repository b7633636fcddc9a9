"""Executors of the plan: starts and stops them when the plan changes.

Processes that plans require, and the running ones that match them.

Role changes: executors of a model take another role instead of ending.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace

import msgspec

from omnibus.bus import Bus, subjects
from omnibus.bus.role_messages import TAKEN, RoleAssignment
from omnibus.cluster.presence import (
    ID,
    TENSOR_PARALLEL,
    DesiredExecutors,
    GatewayPlans,
    ReadyExecutors,
    desired_executors,
)
from omnibus.cluster.roles import ExecutorRole, executor_role, switching_executors
from omnibus.errors import BadRequest, OmnibusError, ProblemDetails, ProtocolError, StoreUnavailable, from_problem
from omnibus.families.catalog import PYTHON
from omnibus.plan import Plan
from omnibus.process.logs import Log
from omnibus.process.spec import SHARED, ProcessSpec, python_command
from omnibus.settings import ServiceSettings, read_settings
from omnibus.store import Store
from omnibus.up.fork_server import can_fork_executors
from omnibus.up.supervisor import Supervisor

EXIT_TIMEOUT_SECONDS = 10.0  # seconds that a process may take to end after it has drained
#: Priority of executors beside the gateway on the same machine, unless the environment sets it.
_NICE, _NICE_DEFAULT = "OMNIBUS_EXECUTOR_NICE", "10"
#: What a plan says of an option, whatever all executors are told.
_OF_OPTIONS = ("OMNIBUS_EXECUTOR_ENGINE", "OMNIBUS_EXECUTOR_BATCH", "OMNIBUS_EXECUTOR_DTYPE")


def process_specs(
    *plans: Plan, env: Mapping[str, str], fork_server: str = "", switches: bool = False
) -> dict[str, ProcessSpec]:
    """Return the processes that ``plans`` require together, by name.

    ``env`` is the environment of all of them. ``fork_server`` is the socket of a fork server, which forks those that it
    can. With ``switches``, executors may change their role, see ``omnibus.cluster.roles``.
    """
    specs: dict[str, ProcessSpec] = {}
    for each in (switching_executors if switches else desired_executors)(*plans).values():
        for replica in range(each.replicas):
            spec = _executor_spec(each, replica, env, fork_server)
            spec = _with_origin_name(spec) if spec.name in specs else spec
            specs[spec.name] = spec
    return specs


def reconcile_specs(
    specs: Mapping[str, ProcessSpec], there: Mapping[str, ProcessSpec], ending: Collection[str], vital: bool = False
) -> tuple[set[str], list[ProcessSpec]]:
    """Return the names of processes to keep and the specs to start.

    A running process with another name that does the same work is kept. A new process whose name is in use gets another
    one; if that is in use too, it waits. Executors are vital only at the very start: a faulty later plan must not end
    the running ones.
    """
    live = {name: spec for name, spec in there.items() if name not in ending}
    unchanged_names = {name for name, spec in specs.items() if name in live and _is_same_work(spec, live[name])}
    fresh: dict[str, ProcessSpec] = {}
    for spec in (spec for name, spec in specs.items() if name not in unchanged_names):
        twin = next(
            (name for name, other in live.items() if name not in unchanged_names and _is_same_work(spec, other)), None
        )
        if twin is not None:
            unchanged_names.add(twin)
        elif (named_spec := _with_free_name(spec, there, fresh)) is not None:
            fresh[named_spec.name] = replace(named_spec, vital=spec.vital and vital)
    return unchanged_names, list(fresh.values())


def _with_free_name(
    spec: ProcessSpec, there: Mapping[str, ProcessSpec], fresh: Mapping[str, ProcessSpec]
) -> ProcessSpec | None:
    """Return ``spec`` under a free name, or None to wait."""
    for each in (
        [spec] if _runs_app_code(spec) else [_with_option_name(spec), _with_origin_name(_with_option_name(spec))]
    ):
        if each.name not in there and each.name not in fresh:
            return each
        if each.name in there and _is_same_work(each, there[each.name]):
            return None  # it is just ending, and may come back under its name
    return None


def grace_seconds(env: Mapping[str, str], service: str) -> float:
    """Return the seconds between TERM and KILL for ``service``. They let it drain and close with the environment
    ``env``."""
    return read_settings(ServiceSettings, {**os.environ, **env}).drain_seconds(service) + EXIT_TIMEOUT_SECONDS


def _executor_spec(each: DesiredExecutors, replica: int, env: Mapping[str, str], fork_server: str) -> ProcessSpec:
    kind = each.kind
    id = subjects.subject_token(f"{kind.model}-{kind.option}-{replica}")
    base_name = f"{kind.model}/{kind.option}"
    # The name is the same however many there are.
    spec = executor_process(each, f"{base_name}/{replica}" if replica else base_name, id, env, fork_server)
    spec = replace(spec, after=("nats", *spec.after))
    return _with_origin_name(spec) if _runs_app_code(spec) else spec


def executor_process(
    each: DesiredExecutors, name: str, id: str, env: Mapping[str, str], fork_server: str
) -> ProcessSpec:
    """Return the process of an executor. It starts after the ``sidecar``, and after its fork server if it has one."""
    own = {name: each.env[name] for name in _OF_OPTIONS if name in each.env}
    if each.gpus > 1 and TENSOR_PARALLEL not in {**os.environ, **env, **each.env}:
        own[TENSOR_PARALLEL] = str(each.tensor_parallel)
    nice = os.environ.get(_NICE, _NICE_DEFAULT)
    environment = {_NICE: nice, **each.env, ID: id, **env, **own}
    module = f"omnibus_{each.service}"
    is_forked = bool(fork_server) and can_fork_executors({**os.environ, **environment})
    return ProcessSpec(
        name,
        python_command(module),
        env=environment,
        fork_server=fork_server if is_forked else "",
        cwd=SHARED,
        after=("sidecar", "fork-server") if is_forked else ("sidecar",),
        blocks=environment["OMNIBUS_EXECUTOR_FAMILY"] == PYTHON,
        vital=not each.apps,  # an app that cannot run must not end what others use
        grace=grace_seconds(environment, each.service),
    )


def _runs_app_code(spec: ProcessSpec) -> bool:
    """Return whether it runs an app's code. Two versions of that often run at once."""
    return spec.env["OMNIBUS_EXECUTOR_FAMILY"] == PYTHON


def _origin_mark(spec: ProcessSpec) -> str:
    return spec.env["OMNIBUS_EXECUTOR_ORIGIN"][:4]


def _with_origin_name(spec: ProcessSpec) -> ProcessSpec:
    """Return ``spec`` with the name that includes its origin."""
    return replace(
        spec, name=f"{spec.name}@{_origin_mark(spec)}", env={**spec.env, ID: f"{spec.env[ID]}-{_origin_mark(spec)}"}
    )


def _with_option_name(spec: ProcessSpec) -> ProcessSpec:
    """Return ``spec`` with the name of its option."""
    id = spec.env[ID].removesuffix(f"-{_origin_mark(spec)}")
    return replace(spec, name=spec.name.removesuffix(f"@{_origin_mark(spec)}"), env={**spec.env, ID: id})


def _is_same_work(one: ProcessSpec, other: ProcessSpec) -> bool:
    """Return whether both do the same work, regardless of their names."""
    return one == replace(other, name=one.name, env={**other.env, ID: one.env[ID]}, vital=one.vital)


ANSWER_TIMEOUT_SECONDS = 5.0  # seconds to wait for an executor to accept or reject a role
_PREFIX = "OMNIBUS_EXECUTOR_"


class RoleSwitcher:
    """Requests role changes from executors on ``bus``. Of the ``ready`` ones, at least one stays in its role."""

    def __init__(self, bus: Bus, ready: ReadyExecutors, log: Log) -> None:
        self._bus = bus
        self._ready = ready
        self._log = log
        self._refused: set[tuple[str, str]] = set()  # ids, and the options that they cannot become
        self._assigned: dict[str, str] = {}  # ids, and the options that they have become or are about to

    async def switch(self, there: Mapping[str, ProcessSpec], target: ProcessSpec) -> ProcessSpec | None:
        """Make one of the processes ``there``, by name, become ``target``. Returns its new spec.

        Returns None if no process can change or may leave its role: then start ``target``.
        """
        for spec in there.values():
            refusal = (spec.env[ID], target.env[f"{_PREFIX}OPTION"])
            if not can_become(spec, target) or refusal in self._refused or not self._may_leave(spec):
                continue
            try:
                await self._assign(spec.env[ID], target)
            except OmnibusError as error:
                if isinstance(error, BadRequest):  # anything else may pass
                    self._refused.add(refusal)
                self._log.write_line(spec.name, f"keeps its role: {error}")
                continue
            self._assigned[spec.env[ID]] = target.env[f"{_PREFIX}OPTION"]
            self._log.write_line(spec.name, f"becomes {target.name}: the plan has more of these and fewer of it")
            return in_role(spec, target)
        return None

    def _may_leave(self, spec: ProcessSpec) -> bool:
        """Return whether another executor of its kind serves. Requests then always have one."""
        model, option = spec.env[f"{_PREFIX}MODEL"], spec.env[f"{_PREFIX}OPTION"]
        ready = [each for each in self._ready.ready_statuses() if (each.model, each.option) == (model, option)]
        return sum(self._assigned.get(each.id, option) == option for each in ready) > 1

    async def _assign(self, executor: str, target: ProcessSpec) -> None:
        """Send the role to ``executor``. Raises its problem, and ``NotFound`` or ``DeadlineExceeded`` without a
        response."""
        role = RoleAssignment(
            option=target.env[f"{_PREFIX}OPTION"],
            origin=target.env[f"{_PREFIX}ORIGIN"],
            components=tuple(target.env[f"{_PREFIX}COMPONENTS"].split(",")),
            tasks=tuple(task for task in target.env.get(f"{_PREFIX}TASKS", "").split(",") if task),
        )
        answer = await self._bus.request(
            subjects.role_subject(executor), msgspec.json.encode(role), ANSWER_TIMEOUT_SECONDS
        )
        if answer == TAKEN:
            return
        try:
            problem = msgspec.json.decode(answer, type=ProblemDetails)
        except msgspec.DecodeError as error:
            raise ProtocolError(f"cannot decode the problem that executor {executor} returned: {error}") from error
        raise from_problem(problem)


def can_become(spec: ProcessSpec, target: ProcessSpec) -> bool:
    """Return whether ``spec`` can take the role of ``target``. They must differ in their role alone."""
    one, other = _process_role(spec), _process_role(target)
    return one is not None and other is not None and one.can_become(other)


def in_role(spec: ProcessSpec, target: ProcessSpec) -> ProcessSpec:
    """Return the spec for the next start of ``spec``: ``target`` with the old name and id."""
    return replace(target, name=spec.name, env={**target.env, ID: spec.env[ID]}, vital=spec.vital, alive=spec.alive)


def _process_role(spec: ProcessSpec) -> ExecutorRole | None:
    environment = {name: value for name, value in spec.env.items() if name != ID}
    return executor_role(environment, spec.argv, spec.cwd, spec.after, spec.blocks, spec.grace)


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
