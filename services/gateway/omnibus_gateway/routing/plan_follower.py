"""Follower of the plan: reads each new epoch from the store, and announces it on the bus."""

import asyncio
import logging

import msgspec

from omnibus.bus import Bus, Delivery, subjects
from omnibus.bus.census import find_answer_subject
from omnibus.bus.messages import GatewayStatus
from omnibus.errors import OmnibusError, StoreUnavailable
from omnibus.plan import Plan
from omnibus.store import Store
from omnibus_gateway.routing.router import Router

log = logging.getLogger(__name__)

#: Seconds between attempts to read a plan while the store is unavailable.
RETRY_PAUSE_SECONDS = 0.5
_STATUS_SUBJECT = subjects.event_subject(subjects.GATEWAY)


class PlanFollower:
    """Keeps the plan and cell shares of ``router`` up to date.

    They come from ``store``; while it is unavailable, the last ones stay in force. ``read`` is set once the plan in
    force is known, or if there is none. ``node`` is where this gateway runs.
    """

    def __init__(self, router: Router, store: Store, bus: Bus, node: str) -> None:
        self.router = router
        self._store = store
        self._bus = bus
        self._node = node
        self.read = asyncio.Event()

    async def follow_plans(self) -> None:
        """Read each new epoch, until cancelled."""
        async for epoch in self._store.epoch_changes():
            if epoch and (self.router.plan is None or epoch != self.router.plan.epoch):
                await self._use_epoch(epoch)
            self.read.set()

    async def follow_cell_shares(self) -> None:
        """Apply the cell shares that operators set, until cancelled."""
        async for shares in self._store.cell_share_changes():
            self.router.use_cell_shares(shares)

    def answer_census(self, delivery: Delivery) -> None:
        """Announce the plan in force here to the sender of a census."""
        if subject := find_answer_subject(delivery, subjects.GATEWAY):
            self.announce_status("ready", subject)

    def announce_status(self, state: str, subject: str = _STATUS_SUBJECT) -> None:
        """Announce the plan in force here: executors of the previous one stop once no gateway uses it."""
        plan = self.router.plan
        if plan is None:
            return
        status = GatewayStatus(self.router.gateway, plan.epoch, plan.created, state, node=self._node, digests=True)
        try:
            self._bus.publish(subject, msgspec.json.encode(status))
        except OmnibusError as error:
            log.warning("status not sent: %s", error)

    async def _use_epoch(self, epoch: int) -> None:
        current_plan, plan = self.router.plan, await self._read_plan(epoch)
        # A store that lost everything counts from 1 again, so the newer plan is found by its time.
        if plan is not None and (
            current_plan is None or plan.epoch > current_plan.epoch or plan.created > current_plan.created
        ):
            self.router.plan = plan
            log.info("plan epoch %d: %s", plan.epoch, ", ".join(plan.models))
            self.announce_status("ready")

    async def _read_plan(self, epoch: int) -> Plan | None:
        """Read the plan of ``epoch``; None if the store lost it or it cannot be decoded."""
        while True:
            try:
                return await self._store.plan(epoch)
            except StoreUnavailable as error:  # an epoch is announced once, so retry
                log.warning("plan epoch %d: %s", epoch, error)
                await asyncio.sleep(RETRY_PAUSE_SECONDS)
            except OmnibusError as error:
                log.error("plan epoch %d: %s", epoch, error)
                return None
