"""Slot of one request: its turn from begin to end, and the cost of its segments."""

import asyncio
from collections.abc import Mapping, Sequence

from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.routing.assignment import Assignment
from omnibus_gateway.routing.router import NO_PATHS
from omnibus_gateway.tenancy.admission import Admission, AdmissionGrant, PlaceRequest
from omnibus_gateway.tenancy.cost_model import RequestCost
from omnibus_gateway.tenancy.tenant import Tenant


class AdmissionSlot:
    """Slot of a request of ``tenant``. A ``patient`` one waits until its deadline, without a queue limit."""

    def __init__(self, admission: Admission, tenant: Tenant) -> None:
        self.patient = False
        self.pinned = ""
        self.conversation = ""
        self._admission = admission
        self._tenant = tenant
        self._one_by_one = asyncio.Lock()
        self._grant: AdmissionGrant | None = None
        self._costs: dict[int, RequestCost] = {}  # by the step of each segment
        self._used: dict[int, float] = {}  # GPU-seconds of the segments that are settled
        self._steps: frozenset[int] | None = None  # those sent, once nothing runs any more

    @property
    def paths(self) -> Mapping[str, str]:
        """The paths on which it has places, by model."""
        return self._grant.paths if self._grant is not None else NO_PATHS

    async def acquire(
        self, assignment: Assignment, work: Sequence[float], step: int, left: float, pins: Sequence[str] = ()
    ) -> None:
        """Wait for the turn, at the first segment; count its expected cost. Raises ``Overloaded``."""
        cost = self._admission.costs.expected_cost(assignment, work, self._tenant.name)
        async with self._one_by_one:  # an app may send several at once, and has one turn for all of them
            if self._grant is None:
                request = PlaceRequest(assignment, cost, left, self.patient, self.pinned, pins, self.conversation)
                self._grant = await self._admission.acquire_grant(self._tenant, request)
            else:
                self._grant.add_cost(cost.seconds)
        self._costs[step] = cost

    def release(self, segments: Sequence[InflightInvocation]) -> None:
        """Release the turn, because none of ``segments`` runs any more; idempotent."""
        if self._grant is not None and self._steps is None:
            self._steps = frozenset(running.invocation.step for running in segments)
            self._grant.close()
            self._settle_request(self._grant)

    def settle_segment(self, running: InflightInvocation, seconds: float) -> None:
        """Settle a segment at ``seconds`` of GPUs, after its last reports."""
        step = running.invocation.step
        cost = self._costs.get(step)
        if self._grant is not None and cost is not None and step not in self._used:
            self._used[step] = self._admission.costs.learn(cost, running, seconds, self._tenant.name)
            self._settle_request(self._grant)

    def _settle_request(self, grant: AdmissionGrant) -> None:
        if self._steps is not None and self._steps & self._costs.keys() <= self._used.keys():
            grant.settle(sum(self._used.values()))
