"""Process of an executor: settings, connections, engines. Services that run an executor share it."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from omnibus import checkpoints, tracing
from omnibus.bus import subjects
from omnibus.bus.nats import NatsBus
from omnibus.bus.subjects import subject_token, task_name
from omnibus.checkpoints import generation_config
from omnibus.errors import BadRequest, OmnibusError
from omnibus.executor import shared_process
from omnibus.executor.energy_meters import open_meter
from omnibus.executor.identity import ExecutorIdentity
from omnibus.executor.loop import Executor
from omnibus.executor.role_switch import RoleSwitch
from omnibus.executor.runner import Runner
from omnibus.executor.settings import ExecutorSettings, VllmSettings
from omnibus.families import catalog, plugins
from omnibus.process import run_module
from omnibus.process.garbage import tune_garbage_collector
from omnibus.process.priority import lower_priority
from omnibus.settings import BusSettings, ServiceSettings, SidecarSettings, read_settings
from omnibus.tensors import waiting
from omnibus.tensors.client import TensorClient

log = logging.getLogger(__name__)

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
            sampling=_read_sampling(shared_process.hosted_checkpoints(source, components)),
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
        self._tensors = await waiting.connect_when_ready(sidecar.socket, identity.id, sidecar.node_name)
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
