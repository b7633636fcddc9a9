"""Executors that die while they work, in a whole gateway without sockets."""

import asyncio
from collections import Counter
from typing import Any

from omnibus.bus import subjects
from omnibus.executor.runner import Job
from tests.unit.gateway.house import OMNI, TOYS, ToyGateway
from tests.unit.sidecar.node import wait_until

SPEECH = {"modalities": ["text", "audio"], "audio": {"voice": "Ethan", "format": "wav"}}
PATH = "EV>EA>Th>Ta>V"


class Ward:
    """Counts the starts and completions of each component, and pauses some."""

    def __init__(self, home: ToyGateway) -> None:
        self.home = home
        self.began: Counter[str] = Counter()
        self.gates: dict[str, asyncio.Event] = {}
        self.held: Counter[str] = Counter()

    def gate(self, component: str, runs: int = 1) -> asyncio.Event:
        """Return an event that the first ``runs`` of ``component`` wait for."""
        self.held[component] = runs
        return self.gates.setdefault(component, asyncio.Event())

    def counting(self, component: str, held: bool = False) -> Any:
        async def run_stage(job: Job) -> None:
            self.began[component] += 1
            gate = self.gates.get(component) if self.began[component] <= self.held[component] else None
            await TOYS[component](job if gate is None else HeldJob(job, gate))  # type: ignore[arg-type]

        return run_stage

    async def serve(self, model: str = OMNI, twice: tuple[str, ...] = (), **options: tuple[str, ...]) -> None:
        """Start executors of ``options``, and a second one for each in ``twice``."""
        self.home.serve(model)
        for option, components in options.items():
            works = {each: self.counting(each) for each in components}
            for number in range(1 + (option in twice)):
                id = f"{option}-{number}"
                await self.home.executor(model, option, *components, id=id, **works)

    async def kill(self, id: str) -> None:
        """Remove ``id`` like a killed process: without a message, with its work open."""
        executor = self.home.place.executors.pop(id)
        assert executor._heart is not None
        executor._heart.cancel()
        executor._confirmations._taken.clear()
        executor._confirmations._records.clear()
        executor._outbox._waiting.clear()
        for live in list(executor._live):
            executor._stop_invocation(live.invocation.id)
        await executor._tensors.close()
        self.home.place.clients.remove(executor._tensors)
        self.home.bus.publish(subjects.event_subject(subjects.GONE), id.encode())

    async def running(self, component: str, times: int = 1) -> str:
        """Wait until ``component`` has begun ``times`` times and return its current executor."""
        await wait_until(lambda: self.began[component] >= times)
        [running] = self.home.dispatcher._running.values()
        node = [each.component for each in running.invocation.nodes].index(component)
        return running.executors[node]


class HeldJob:
    """A job that sends its first chunk, then waits for a gate."""

    def __init__(self, job: Job, gate: asyncio.Event) -> None:
        self._job = job
        self._gate = gate
        self._given = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    async def send(self, *args: Any) -> None:
        self._given += 1
        if self._given > 1:
            await self._gate.wait()
        await self._job.send(*args)

    async def put(self, *args: Any) -> None:
        await self._gate.wait()
        await self._job.put(*args)
