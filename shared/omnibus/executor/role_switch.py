"""Change of a running executor to another role of its model."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec
from msgspec import structs

from omnibus.bus import Bus, Delivery, subjects
from omnibus.bus.role_messages import TAKEN, RoleAssignment, decode_role
from omnibus.errors import BadRequest, Conflict, OmnibusError
from omnibus.executor.identity import ExecutorIdentity
from omnibus.executor.loop import Executor
from omnibus.executor.runner import Runner
from omnibus.executor.settings import ExecutorSettings

log = logging.getLogger(__name__)


class RoleSwitch:
    """Accepts role assignments for ``executor``, which was started with ``settings``.

    ``identify`` makes its identity from other settings with the same id. Accepted work may take ``drain_seconds``. If a
    role change fails, the process ends; after its restart it has the new role.
    """

    def __init__(
        self,
        executor: Executor,
        settings: ExecutorSettings,
        identify: Callable[[ExecutorSettings], ExecutorIdentity],
        drain_seconds: float,
    ) -> None:
        self._executor = executor
        self._settings = settings
        self._identify = identify
        self._drain_seconds = drain_seconds
        self._task: asyncio.Task[None] | None = None

    async def listen(self, bus: Bus) -> None:
        """Accept assignments from now on."""
        await bus.add_responder(subjects.role_subject(self._executor.identity.id), self._on_assignment)

    async def close(self) -> None:
        """Cancel a role change that is in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _on_assignment(self, delivery: Delivery) -> AsyncIterator[bytes]:
        try:
            self.take(decode_role(delivery.data))
        except OmnibusError as error:
            yield msgspec.json.encode(error.to_problem())
        else:
            yield TAKEN

    def take(self, role: RoleAssignment) -> None:
        """Start to change to ``role``. Raises ``Conflict`` during another change, and ``BadRequest``."""
        if self._task is not None and not self._task.done():
            raise Conflict(f"executor {self._executor.identity.id} is changing its role; retry when it is ready")
        settings = structs.replace(
            self._settings,
            id=self._executor.identity.id,
            option=role.option,
            origin=role.origin,
            components=",".join(role.components),
            tasks=",".join(role.tasks),
        )
        identity = self._identify(settings)
        runners = find_runners(self._executor.runners, tuple(identity.tasks.values()), settings)
        self._task = asyncio.get_running_loop().create_task(self._take(settings, identity, runners))

    async def _take(
        self, settings: ExecutorSettings, identity: ExecutorIdentity, runners: Mapping[str, Runner]
    ) -> None:
        try:
            await self._executor.take_role(identity, runners, self._drain_seconds)
            self._settings = settings
        except Exception:
            log.exception("cannot change to the role %s; stopping", identity.option)
            os.kill(os.getpid(), signal.SIGTERM)


def find_runners(
    there: Mapping[str, Runner], components: tuple[str, ...], settings: ExecutorSettings
) -> dict[str, Runner]:
    """Return the runners of ``components``: those in ``there``, or new ones with their weights.

    Raises ``BadRequest`` for a component that these cannot serve.
    """
    return {component: there.get(component) or _switched_runner(there, component, settings) for component in components}


def _switched_runner(there: Mapping[str, Runner], component: str, settings: ExecutorSettings) -> Runner:
    reason = f"the engines of {' and '.join(there)} have not loaded it"
    for runner in there.values():
        switch = getattr(runner, "switch_role", None)
        if switch is None:
            continue
        try:
            new_runner: Runner = switch(component, settings)
        except BadRequest as error:
            reason = error.message
        else:
            return new_runner
    raise BadRequest(f"this executor cannot become {component}: {reason}")
