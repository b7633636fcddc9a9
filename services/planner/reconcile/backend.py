"""Interface of a reconciler's backend: a place where executors run."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from omnibus.cluster.desired import DesiredExecutors, ExecutorKind
from omnibus.errors import OmnibusError


class RunningWorkload(NamedTuple):
    """A workload. ``name`` is what the backend calls it, ``mark`` differs when what is told to it does. ``epoch`` is
    that of the newest plan that asked for it."""

    name: str
    kind: ExecutorKind
    replicas: int
    mark: str
    epoch: int = 0


class Backend(Protocol):
    """Each call is bounded in time, and raises a typed error when it could not be done."""

    #: Seconds between two looks at what runs when nothing changes.
    resync: float

    @property
    def is_leader(self) -> bool:
        """True if this planner may change anything: of several, one does."""

    @property
    def leadership_error(self) -> OmnibusError | None:
        """Error that prevents finding out which planner leads; None when there is none."""

    async def run_leader_election(self, tell: Callable[[], None]) -> None:
        """See to it until cancelled; ``tell`` is called when ``is_leader`` changes, and trouble comes or goes."""

    def workload_hash(self, wanted: DesiredExecutors) -> str:
        """Return the value of ``RunningWorkload.mark`` for these executors."""

    async def list_workloads(self) -> list[RunningWorkload]:
        """All workloads of this Omnibus."""

    async def start(self, wanted: DesiredExecutors) -> None:
        """Create the workload."""

    async def scale(self, running: RunningWorkload, wanted: DesiredExecutors) -> None:
        """Let as many of it run as are wanted, for the plan that wants them. Nobody is replaced."""

    async def replace_executors(self, running: RunningWorkload, wanted: DesiredExecutors) -> None:
        """Tell it what it is to be from now on; its executors are replaced one by one."""

    async def stop(self, running: RunningWorkload) -> None:
        """Delete it; what it has accepted may finish."""
