"""Executors as the bus sees them. They report that they follow the store's plans."""

import asyncio
from contextlib import suppress

import msgspec

from omnibus.bus import Bus, subjects
from omnibus.bus.messages import ExecutorStatus
from omnibus.cluster.presence import DesiredExecutors, ExecutorKind, desired_executors
from omnibus.errors import ProtocolError
from omnibus.plan import Plan
from omnibus.service import until_cancelled
from omnibus.store import Store

BEAT = 0.2  # seconds


class ExecutorCrowd:
    """A follower of the current and the staged plan.

    Options in ``broken`` (``m/E``) get no ready executors, those in ``busy`` drain until released. ``most`` is the peak
    count.
    """

    def __init__(self, store: Store, bus: Bus) -> None:
        self.broken: set[str] = set()
        self.busy: set[str] = set()
        self.draining: dict[str, ExecutorKind] = {}
        self.most = 0
        self.there: dict[str, ExecutorKind] = {}
        self.spawned: list[str] = []
        self._store = store
        self._bus = bus
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        await self._bus.subscribe(subjects.event_subject(subjects.CENSUS), lambda _: self._report_states())
        self._tasks = [asyncio.create_task(work) for work in (self._follow_plans(), self._report_often())]

    async def close(self) -> None:
        for task in self._tasks:
            await until_cancelled(task)

    async def _follow_plans(self) -> None:
        current: Plan | None = None
        async for stand in self._store.plan_changes():
            next_plan: Plan | None = None
            with suppress(ProtocolError):
                current = await self._store.plan(stand.epoch) or current
            with suppress(ProtocolError):
                next_plan = await self._store.staged_plan()
            self.become([plan for plan in (current, next_plan) if plan is not None])

    def become(self, plans: list[Plan]) -> None:
        """Start and stop executors."""
        executors = {id: kind for each in desired_executors(*plans).values() for id, kind in _list_executors(each)}
        for id in self.there.keys() - executors.keys():
            kind = self.there.pop(id)
            if f"{kind.model}/{kind.option}" in self.busy:
                self.draining[id] = kind
            else:
                self._publish_status(id, kind, "gone")
        self.spawned += sorted(id.rpartition("-")[0] for id in executors.keys() - self.there.keys())
        self.there = executors
        self.most = max(self.most, len(self.there) + len(self.draining))
        self._report_states()

    def let_go(self) -> None:
        """Report every draining executor as gone."""
        self.busy.clear()
        while self.draining:
            self._publish_status(*self.draining.popitem(), "gone")

    def mend(self, option: str) -> None:
        """Make the option's executors ready."""
        self.broken.discard(option)
        self._report_states()

    async def _report_often(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            self._report_states()

    def _report_states(self) -> None:
        for id, kind in self.there.items():
            if f"{kind.model}/{kind.option}" not in self.broken:
                self._publish_status(id, kind, "ready")

        for id, kind in self.draining.items():
            self._publish_status(id, kind, "draining")

    def _publish_status(self, id: str, kind: ExecutorKind, state: str) -> None:
        status = ExecutorStatus(id, kind.model, kind.option, (), (), "n", state, 64, origin=kind.origin)
        self._bus.publish(subjects.event_subject(subjects.EXECUTOR), msgspec.json.encode(status))


def _list_executors(group: DesiredExecutors) -> list[tuple[str, ExecutorKind]]:
    kind = group.kind
    return [
        (subjects.subject_token(f"{kind.model}-{kind.option}-{n}-{kind.origin[:4]}"), kind)
        for n in range(group.replicas)
    ]
