"""Plan of a running system: when it has changed, and its predictions."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import psutil

from omnibus.bus import Delivery, messages, subjects
from omnibus.errors import StoreUnavailable
from omnibus.plan import Plan
from omnibus.store import Store
from tests.e2e.planned.cell import MODEL
from tests.e2e.system import System

WITHIN = 90.0  # seconds for the load to be noticed and executors to start, on a busy machine
FOLLOWED = "load: "
#: Reasons of plans that follow the load of a window, or of the last seconds alone.
FOLLOWING = (FOLLOWED, f"burst: {FOLLOWED}")
#: What reasons of plans on the way to another one have in them.
STEPS = ("makes room for", "new executors")


class Places:
    """Number of executors, including draining ones, and its maximum, from heartbeats."""

    def __init__(self) -> None:
        self.most = 0
        self._there: set[str] = set()

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, system: System) -> AsyncIterator["Places"]:
        places = cls()
        async with system.bus() as bus:
            await bus.subscribe(subjects.event_subject(subjects.EXECUTOR), places._heard)
            bus.publish(subjects.event_subject(subjects.CENSUS), b"{}")
            yield places

    def _heard(self, delivery: Delivery) -> None:
        status = messages.decode_status(delivery.data)
        (self._there.discard if status.state == "gone" else self._there.add)(status.id)
        self.most = max(self.most, len(self._there))


async def wait_for_plan(
    system: System, store: Store, after: int = 0, fits: Callable[[Plan], bool] = lambda plan: True
) -> Plan:
    """Plan for the load since epoch ``after`` that ``fits``.

    Returns once exactly its executors run. ``after`` is 0 for the first plan. The first plan after a burst considers
    only its first seconds, so it need not fit.
    """
    async with asyncio.timeout(WITHIN):
        while True:
            with contextlib.suppress(StoreUnavailable):
                plan, stand = await store.plan(), await store.plan_state()
                if (
                    plan is not None
                    and _is_next(plan, after)
                    and fits(plan)
                    and not stand.staged
                    and is_running(system, plan)
                ):
                    return plan
            await asyncio.sleep(0.1)


def _is_next(plan: Plan, after: int) -> bool:
    return plan.epoch > after and (not after or _is_following(plan))


def _is_following(plan: Plan) -> bool:
    return plan.reason.startswith(FOLLOWING) and not any(step in plan.reason for step in STEPS)


def is_running(system: System, plan: Plan) -> bool:
    """Return True if the number of executors matches ``plan``."""
    return count_executors(system) == sum(read_replicas(plan).values())


def count_executors(system: System) -> int:
    """Number of running executors, including those about to stop."""
    return sum(_is_executor(command) for command in system.commands())


def _is_executor(process: psutil.Process) -> bool:
    try:
        return not {"omnibus_encoder", "omnibus_llm"}.isdisjoint(process.cmdline())
    except psutil.Error:  # it has just ended
        return False


def read_replicas(plan: Plan) -> dict[str, int]:
    return {name: option.replicas for name, option in plan.models[MODEL].options.items()}


def read_capacity(plan: Plan) -> float:
    """Req/s that ``plan`` promises."""
    return float(plan.explain["planned"]["models"][MODEL]["capacity"])


async def read_reasons(store: Store) -> list[str]:
    """Reasons of all plans that followed the load, oldest first."""
    plans = [past.plan for past in reversed(await store.plan_history(100)) if past.plan is not None]
    return [plan.reason for plan in plans if _is_following(plan)]
