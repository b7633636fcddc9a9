"""Process of an executor: settings, connections, engines. Services that run an executor share it.

The engine of executors that run components of several models and apps in one process.

``OMNIBUS_EXECUTOR_CHECKPOINT`` lists the components: a JSON list of ``HostedPart``. Each is run by the engine of its
own model, with the settings that an executor of that model has.

Change of a running executor to another role of its model.
"""

import asyncio
import logging
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec import structs

from omnibus import checkpoints, tracing
from omnibus.bus import Bus, Delivery, subjects
from omnibus.bus.nats import NatsBus
from omnibus.bus.role_messages import TAKEN, RoleAssignment, decode_role
from omnibus.bus.subjects import subject_token, task_name
from omnibus.checkpoints import generation_config
from omnibus.errors import BadRequest, Conflict, OmnibusError
from omnibus.executor.energy_meters import open_meter
from omnibus.executor.loop import Executor
from omnibus.executor.runner import Runner
from omnibus.executor.settings import ExecutorSettings, VllmSettings
from omnibus.executor.status import ExecutorIdentity
from omnibus.families import catalog, plugins
from omnibus.families.catalog import HostedPart
from omnibus.process import run_module
from omnibus.process.tuning import lower_priority, tune_garbage_collector
from omnibus.settings import BusSettings, ServiceSettings, SidecarSettings, read_settings
from omnibus.tensors.client import TensorClient, connect_when_ready

#: Name of ``engine`` in plans.
ENGINE = f"{__name__}:engine"

_decode = msgspec.json.Decoder(list[HostedPart]).decode


def engine(component: str, settings: ExecutorSettings) -> Runner:
    """Return the runner of ``component`` by its own engine. Raises ``BadRequest`` for one that is not listed."""
    parts = read_parts(settings.checkpoint)
    if component not in parts:
        raise BadRequest(f"OMNIBUS_EXECUTOR_CHECKPOINT has no component {component!r}; there is {', '.join(parts)}")
    part = parts[component]
    own = msgspec.structs.replace(
        settings,
        components=part.component,
        family=part.family,
        checkpoint=part.checkpoint,
        engine=part.engine,
        context=part.context,
    )
    runner: Runner = plugins.import_object(part.engine, "OMNIBUS_EXECUTOR_ENGINE")(part.component, own)
    return runner


def read_parts(checkpoint: str) -> dict[str, HostedPart]:
    """Return the parts that ``checkpoint`` lists, by name. Raises ``BadRequest`` if it is not such a list."""
    try:
        return {part.name: part for part in _decode(checkpoint)}
    except msgspec.MsgspecError as error:
        raise BadRequest(f"OMNIBUS_EXECUTOR_CHECKPOINT must be a JSON list of parts: {error}") from error


def hosted_checkpoints(settings: ExecutorSettings, components: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of a component and its checkpoint, as their own models have them."""
    if settings.engine != ENGINE:
        return [(component, settings.checkpoint) for component in components]
    parts = read_parts(settings.checkpoint)
    return [(parts[name].component, parts[name].checkpoint) for name in components if name in parts]


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


#: Registers the arena with the driver of a GPU. By name, like engines, since it needs torch.
_PIN_MEMORY = "omnibus_engines.pinned_memory:pin_memory"
_FAULT_CHARS = 400  # longest part of an error that is published
TRACE_FLUSH_SECONDS = 2.0  # longest time that a stopping process takes to send its traces

#: Makes the runner of one component; an *engine* in the sense of the design.
Engine = Callable[[str, ExecutorSettings], Runner]


def load_engine(path: str) -> Engine:
    """Return the engine at ``module:function``."""
    return plugins.import_object(path, "OMNIBUS_EXECUTOR_ENGINE")


class ExecutorService:
    """Runs the components named in the environment (``OMNIBUS_EXECUTOR_*``) as one executor."""

    def __init__(self, settings: ExecutorSettings | None = None) -> None:
        self.settings = settings or read_settings(ExecutorSettings)
        self.executor: Executor | None = None
        self._bus: NatsBus | None = None
        self._tensors: TensorClient | None = None
        self._roles: RoleSwitch | None = None

    def make_identity(self, node: str, settings: ExecutorSettings | None = None) -> ExecutorIdentity:
        """Return the identity from ``settings``, or from the service's own.

        Raises ``BadRequest`` if the model or components are missing, or their unit tasks are unknown.
        """
        source = settings or self.settings
        components = [component for component in source.components.split(",") if component]
        if not source.model or not components:
            raise BadRequest("set OMNIBUS_EXECUTOR_MODEL and OMNIBUS_EXECUTOR_COMPONENTS (e.g. vision,thinker)")
        tasks = dict(zip(_unit_task_names(source, components), components, strict=True))
        if len(tasks) != len(components):
            raise BadRequest(f"two of the components {components} have the same unit task: {', '.join(tasks)}")
        name = source.id or f"{source.model}-{source.option}-{secrets.token_hex(3)}"
        return ExecutorIdentity(
            id=subject_token(name),
            model=source.model,
            option=source.option or "+".join(components),
            node=node,
            tasks=tasks,
            credits=source.credits,
            cell=source.cell,
            origin=source.origin or catalog.code_origin(source.family, source.checkpoint),
            slots=min(source.batch, source.credits),
            device=source.device,
            inline=source.inline,
            sampling=_read_sampling(hosted_checkpoints(source, components)),
        )

    async def startup(self) -> None:
        bus, sidecar = read_settings(BusSettings), read_settings(SidecarSettings)
        try:
            await self._start_executor(bus, sidecar)
        except Exception as error:
            await self._publish_fault(bus, sidecar.node_name, error)
            raise

    async def _publish_fault(self, settings: BusSettings, node: str, error: Exception) -> None:
        """Send the error to the gateways, which show it to the developer of an app whose unit task cannot start."""
        with suppress(OmnibusError):
            identity = self.make_identity(node)
            self._bus = self._bus or await NatsBus.connect(settings, identity.id)
            fault = f"{type(error).__name__}: {error}"[:_FAULT_CHARS]
            status = msgspec.structs.replace(identity.make_status("gone", inflight=0, steps=0), fault=fault)
            self._bus.publish(subjects.event_subject(subjects.EXECUTOR), msgspec.json.encode(status))

    async def _start_executor(self, bus: BusSettings, sidecar: SidecarSettings) -> None:
        self.make_identity(sidecar.node_name)  # reports errors before a long download
        await self.fetch_checkpoint()
        identity = self.make_identity(sidecar.node_name)
        tracing.start_tracing("executor")
        make = load_engine(self.settings.engine)
        runners = {component: make(component, self.settings) for component in identity.tasks.values()}
        self._bus = await NatsBus.connect(bus, identity.id)
        self._tensors = await connect_when_ready(sidecar.socket, identity.id, sidecar.node_name)
        if self.settings.pin_arena and self.settings.device.startswith("cuda"):
            self._tensors.observe_mappings(plugins.import_object(_PIN_MEMORY, "OMNIBUS_EXECUTOR_PIN_ARENA"))
        meter = open_meter(self.settings.device, read_settings(VllmSettings).gpus)
        self.executor = Executor(identity, runners, self._bus, self._tensors, self._bus.max_body, meter)
        await self.executor.startup()
        self._roles = RoleSwitch(
            self.executor,
            self.settings,
            lambda settings: self.make_identity(sidecar.node_name, settings),
            read_settings(ServiceSettings).drain_seconds("executor"),
        )
        await self._roles.listen(self._bus)
        tune_garbage_collector()
        await asyncio.to_thread(lower_priority, self.settings.nice)

    async def fetch_checkpoint(self) -> None:
        """Download the checkpoint and adapters if the settings require it.

        A separate process does it, since this process cannot access the hub.
        """
        executor_settings, online = self.settings, {"HF_HUB_OFFLINE": "0"}
        if not executor_settings.download:
            return
        sources = (
            executor_settings.checkpoint,
            *executor_settings.adapter_checkpoints.values(),
            read_settings(VllmSettings).speculative_model,
        )
        for checkpoint in filter(checkpoints.is_id, sources):
            log.info("downloading %s unless it is present", checkpoint)
            await run_module.call_module(
                "omnibus.checkpoints", checkpoint, within=executor_settings.download_seconds, env=online
            )

    async def drain(self, seconds: float) -> None:
        if self._roles is not None:
            await self._roles.close()
        if self.executor is not None:
            await self.executor.drain(seconds)

    async def shutdown(self) -> None:
        if self._bus is not None:
            await self._bus.drain()
        if self._tensors is not None:
            await self._tensors.close()
        await asyncio.to_thread(tracing.stop_tracing, TRACE_FLUSH_SECONDS)


def _unit_task_names(settings: ExecutorSettings, components: Sequence[str]) -> list[str]:
    """Return the unit task of each component: from the settings, or by the kinds of its family."""
    task_names = [task for task in settings.tasks.split(",") if task]
    if task_names:
        if len(task_names) != len(components) or any(subject_token(task) != task for task in task_names):
            raise BadRequest(
                f"OMNIBUS_EXECUTOR_TASKS={settings.tasks!r} must name one unit task for each of {', '.join(components)}"
            )
        return task_names
    kinds = catalog.find_family(settings.family)["tasks"]
    unknown = [component for component in components if component not in kinds]
    if unknown:
        raise BadRequest(f"unknown components {unknown}; {settings.family} has {sorted(kinds)}")
    return [task_name(kinds[component], settings.model, component) for component in components]


def _read_sampling(hosted: Sequence[tuple[str, str]]) -> dict[str, float] | None:
    """Return the sampling that checkpoints recommend for the ``hosted`` components.

    None if they do not choose tokens.
    """
    language = [checkpoint for component, checkpoint in hosted if component in ("thinker", *catalog.SPLIT)]
    talkers = [checkpoint for component, checkpoint in hosted if component == "talker"]
    if not language and not talkers:
        return None
    return {
        name: value
        for checkpoint in dict.fromkeys([*language, *talkers])
        for name, value in generation_config.read_checkpoint_sampling(checkpoint).items()
        if checkpoint in (talkers if name.startswith(generation_config.TALKER) else language)
    }
