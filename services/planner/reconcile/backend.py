"""What a reconciler works on: a place where executors run."""

from typing import NamedTuple, Protocol

from omnibus.wanted import Kind, Wanted


class Running(NamedTuple):
    """A workload. ``name`` is what the backend calls it, ``mark`` differs when what is told to it does."""

    name: str
    kind: Kind
    replicas: int
    mark: str


class Backend(Protocol):
    """Each call is bounded in time, and raises a typed error when it could not be done."""

    #: Seconds between two looks at what runs when nothing changes.
    resync: float

    def mark(self, wanted: Wanted) -> str:
        """What ``Running.mark`` of these executors is."""

    async def running(self) -> list[Running]:
        """All workloads of this Omnibus."""

    async def start(self, wanted: Wanted) -> None:
        """Create the workload."""

    async def scale(self, running: Running, replicas: int) -> None:
        """Let ``replicas`` of it run."""

    async def change(self, running: Running, wanted: Wanted) -> None:
        """Tell it what it is to be from now on; its executors are replaced one by one."""

    async def stop(self, running: Running) -> None:
        """Delete it; what it has accepted may finish."""
