"""Interface of a reconciler's backend: a place where executors run."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from omnibus.cluster.desired import DesiredExecutors, ExecutorKind
from omnibus.errors import OmnibusError


class RunningWorkload(NamedTuple):
    """A workload.

    ``name`` is its name in the backend. ``mark`` changes with its configuration. ``epoch`` is that of the newest plan
    that needs it.
    """

    name: str
    kind: ExecutorKind
    replicas: int
    mark: str
    epoch: int = 0


class Backend(Protocol):
    """A backend. Each call has a time limit, and raises a typed error if it failed."""

    #: Seconds between two checks of the workloads when nothing changes.
    resync: float

    @property
    def is_leader(self) -> bool:
        """True if this planner may change anything: of several, one does."""

    @property
    def leadership_error(self) -> OmnibusError | None:
        """Error that hides which planner leads; None if there is none."""

    async def run_leader_election(self, tell: Callable[[], None]) -> None:
        """Take part in the election until cancelled.

        ``tell`` is called when ``is_leader`` or the error changes.
        """

    def workload_hash(self, executors: DesiredExecutors) -> str:
        """Return the value of ``RunningWorkload.mark`` for these executors."""

    async def list_workloads(self) -> list[RunningWorkload]:
        """Return all workloads of this Omnibus."""

    async def start(self, executors: DesiredExecutors) -> None:
        """Create the workload."""

    async def scale(self, running: RunningWorkload, executors: DesiredExecutors) -> None:
        """Scale to the ``executors`` replicas, for their plan, without replacing any."""

    async def replace_executors(self, running: RunningWorkload, executors: DesiredExecutors) -> None:
        """Update the workload, whose executors are then replaced one by one."""

    async def stop(self, running: RunningWorkload) -> None:
        """Delete the workload; accepted requests may finish."""
