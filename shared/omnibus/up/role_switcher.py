"""Role changes: executors of a model take another role instead of ending."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from omnibus.bus import Bus, subjects
from omnibus.bus.role_messages import TAKEN, RoleAssignment
from omnibus.cluster.desired import ID
from omnibus.cluster.presence import ReadyExecutors
from omnibus.cluster.roles import ExecutorRole, executor_role
from omnibus.errors import BadRequest, OmnibusError, ProblemDetails, ProtocolError, from_problem
from omnibus.process.logs import Log
from omnibus.process.spec import ProcessSpec

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
