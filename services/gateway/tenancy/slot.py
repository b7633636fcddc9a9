"""One request's stay: its turn, from the time it has it to its end, and what its segments cost meanwhile."""

import asyncio
from collections.abc import Sequence

from omnibus.errors import Overloaded
from services.gateway.dispatch.inflight import InflightInvocation
from services.gateway.routing.assignment import Assignment
from services.gateway.tenancy.admission import Admission, AdmissionGrant
from services.gateway.tenancy.cost_model import RequestCost
from services.gateway.tenancy.tenant import Tenant


class AdmissionSlot:
    """The stay of a request of ``tenant``. A ``patient`` one waits as long as it has time, however many do."""

    def __init__(self, admission: Admission, tenant: Tenant) -> None:
        self.patient = False
        self._admission = admission
        self._tenant = tenant
        self._one_by_one = asyncio.Lock()
        self._grant: AdmissionGrant | None = None
        self._costs: dict[int, RequestCost] = {}  # by the step of each segment

    async def acquire(self, assignment: Assignment, work: Sequence[float], step: int, left: float) -> None:
        """Wait for the turn, at the first segment; count what this one is expected to cost. Raises ``Overloaded``."""
        cost = self._admission.costs.expected_cost(assignment, work)
        async with self._one_by_one:  # an app may send several at once, and has one turn for all of them
            if self._grant is None:
                self._grant = await self._admission.acquire_grant(self._tenant, assignment, cost, left, self.patient)
            else:
                self._grant.add_cost(cost.seconds)
        self._costs[step] = cost

    def release(self, segments: Sequence[InflightInvocation]) -> None:
        """Give the turn back: nothing of ``segments`` is at work any more. Leaving twice is harmless."""
        if self._grant is not None:
            self._grant.close(sum(self._used_gpu_seconds(running) for running in segments))

    def _used_gpu_seconds(self, running: InflightInvocation) -> float:
        """GPU-seconds: what was answered by what it took, what was cut short as it was expected to take."""
        cost = self._costs.get(running.invocation.step)
        if cost is None or isinstance(running.failure, Overloaded):
            return 0.0
        if running.failure is None and all(stream.ended for stream in running.streams.values()):
            return self._admission.costs.settle_cost(cost, running)
        return cost.seconds
