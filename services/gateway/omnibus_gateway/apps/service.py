"""All components of apps at one gateway, connected."""

import asyncio
from functools import partial

from omnibus.metrics import GATEWAY
from omnibus.service import until_cancelled
from omnibus.settings import GatewaySettings
from omnibus.store import Store
from omnibus_gateway.apps.canary import AppCanary
from omnibus_gateway.apps.chat import AppChats, InvokeRoute
from omnibus_gateway.apps.registration import AppControl
from omnibus_gateway.apps.served_apps import Registry
from omnibus_gateway.apps.worker_supervisor import WorkerLimits, WorkerSupervisor
from omnibus_gateway.core import RequestFactory, Router
from omnibus_gateway.rerun.spare_room import SpareRoom, waiting_counter
from omnibus_gateway.tasks.chat import Chat


class AppService:
    """Registered apps: ``registry`` follows the store, and the other attributes serve clients."""

    def __init__(
        self, settings: GatewaySettings, store: Store, router: Router, runs: RequestFactory, chat: Chat
    ) -> None:
        rules = WorkerLimits(ready_within=settings.app_ready, show_errors=settings.app_errors)
        self.registry = Registry(settings, store, partial(WorkerSupervisor, rules=rules))
        canary = AppCanary(runs, SpareRoom(router, waiting_counter(runs)))
        self.control = AppControl(settings, store, self.registry, router, canary)
        self.chats = AppChats(runs, chat, self.registry)
        self.invoke = InvokeRoute(settings, runs, self.registry, self.chats)
        GATEWAY.app_workers.set_value(lambda: self.registry.warm_count)
        self._following: asyncio.Task[None] | None = None

    def model_names(self) -> list[str]:
        """Return the names of the models that apps provide."""
        return [app.model for app in self.registry.model_records()]

    def startup(self) -> None:
        """Start all registered apps, and follow changes of the store."""
        self._following = asyncio.get_running_loop().create_task(self.registry.follow_store())

    async def drain(self, seconds: float) -> None:
        """Wait until all requests have finished."""
        await self.registry.drain(seconds)

    async def shutdown(self) -> None:
        """Stop all workers."""
        if self._following is not None:
            await until_cancelled(self._following)
        await self.registry.shutdown()
