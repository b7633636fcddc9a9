"""A ``Runtime`` in memory: unit tasks run here as soon as their segment is submitted.

    with use(Memory(*tasks.ALL)):
        out = await COMPOSITE(request)

``hosting`` runs one call on any job, as an executor's runner does.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from omnibus.errors import OmnibusError, ProtocolError, StageFailed
from omnibus.executor.runner import Item, Job
from omnibus.graph import WIRE_VERSION, GraphNode, Invocation, as_ref
from omnibus.plan import GOLDEN
from omnibus.task import CompositeTask, Segment, UnitTask, tasks_of, use
from omnibus.task.execute import execute_task
from omnibus.task.input_codec import FROM
from omnibus.task.result import unwrap_value
from tests.unit.jobs import MemoryJob
from tests.unit.task import tasks

Place = tuple[int, int, str]


async def hosting(task: Any, job: Job) -> None:
    """Run ``task`` once: by its ``work(job)``, or as an own task."""
    await (task.work(job) if hasattr(task, "work") else execute_task(task, job))


class Memory:
    """The runtime of request ``number``. ``segments`` are the submitted ones, by step."""

    def __init__(self, *hosted: UnitTask, number: int = 0, seed: int = 7) -> None:
        self.segments: dict[int, Segment] = {}
        self.ran: list[str] = []  # names of the tasks that ran, in the order in which they ended
        self._tasks = {task.name: task for task in tasks_of(list(hosted))}
        self._number = number
        self._seed = seed
        self._pipes: dict[Place, Wire] = {}
        self._jobs: set[asyncio.Task[None]] = set()

    async def submit(self, segment: Segment, step: int) -> Mapping[tuple[int, str], "Reading"]:
        assert step not in self.segments
        self.segments[step] = segment
        document = _make_document(segment, self._seed)
        for index, node in enumerate(segment.nodes):
            task = self._tasks[node.task]
            for output in task.outputs:
                self._pipes[step, index, output] = Wire()
            consumed_outputs = {
                output for place, output in segment.outputs if place == index
            } | document.find_consumers(index).keys()
            job = WireJob(await self._inputs(node, step), tuple(consumed_outputs), document.seed_of(index))
            running = asyncio.get_running_loop().create_task(self._run_node(task, job, step, index))
            self._jobs.add(running)
            running.add_done_callback(self._jobs.discard)
        return {origin: Reading(self._pipes[step, *origin]) for origin in segment.outputs}

    def choice_point(self, site: int) -> float:
        return (self._number * GOLDEN + site * 0.37) % 1.0

    async def _inputs(self, node: GraphNode, step: int) -> dict[str, Any]:
        return {name: await self._input(value, step) for name, value in node.inputs.items()}

    async def _input(self, value: Any, step: int) -> Any:
        origin = as_ref(value)
        if origin is not None:
            return self._pipes[step, *origin]
        if type(value) is list:
            return [await self._input(element, step) for element in value]
        if type(value) is not dict:
            return value
        if FROM not in value:
            return {key: await self._input(element, step) for key, element in value.items()}
        item = await self._pipes[tuple(value[FROM])].first()
        return unwrap_value(item.data) if item.array is None else item

    async def _run_node(self, task: UnitTask, job: "WireJob", step: int, index: int) -> None:
        pipes = {output: self._pipes[step, index, output] for output in task.outputs}
        job.outputs.update(pipes)  # type: ignore[arg-type]
        try:
            await hosting(task, job)
        except OmnibusError as error:
            self._fail_pipes(pipes, error)
        except Exception as error:  # noqa: BLE001 - what an executor makes of it
            self._fail_pipes(pipes, StageFailed(f"{task.name} failed on this request ({type(error).__name__})"))
        else:
            self.ran.append(task.name)
            for pipe in pipes.values():
                pipe.close()

    @staticmethod
    def _fail_pipes(pipes: Mapping[str, "Wire"], error: OmnibusError) -> None:
        for pipe in pipes.values():
            pipe.failure = error
            pipe.close()


class Wire:
    """One output of one call, kept whole for any number of readers."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.failure: OmnibusError | None = None
        self._closed = False
        self._news = asyncio.Event()

    def feed(self, item: Item, last: bool = False) -> None:
        if not self._closed:
            self.items.append(item)
            self._closed = last
            self._news.set()

    def close(self, data: dict[str, Any] | None = None) -> None:
        self._closed = True
        self._news.set()

    async def first(self) -> Item:
        items = await self.until(1)
        if not items:
            raise self.failure or ProtocolError("ended without a value")
        return items[0]

    async def until(self, count: int) -> list[Item]:
        """Wait for ``count`` items, or for the end."""
        while len(self.items) < count and not self._closed:
            self._news.clear()
            await self._news.wait()
        return self.items

    async def read(self) -> AsyncIterator[Item]:
        at = 0
        while len(await self.until(at + 1)) > at:
            yield self.items[at]
            at += 1
        if self.failure is not None:
            raise self.failure


class WireJob(MemoryJob):
    """A job whose inputs may be wires, also within lists and dicts; its ends carry no data."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        return {name: value for name, value in self._inputs.items() if not _holds_wire(value)}

    async def _resolve_value(self, value: Any) -> Any:
        if isinstance(value, Wire):
            return await value.first()
        if isinstance(value, list):
            return [await self._resolve_value(element) for element in value]
        if isinstance(value, dict):
            return {key: await self._resolve_value(element) for key, element in value.items()}
        return value


def _holds_wire(value: Any) -> bool:
    inner = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    return isinstance(value, Wire | Item) or any(map(_holds_wire, inner))


class Reading:
    """A wire for one reader."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._at = 0

    async def next_items(self) -> list[Item]:
        items = (await self._wire.until(self._at + 1))[self._at :]
        self._at += len(items)
        if not items and self._wire.failure is not None:
            raise self._wire.failure
        return items


class Runs:
    """A runner of async functions as composite tasks in separate requests."""

    def __init__(self) -> None:
        self.runtime = Memory(*tasks.ALL)

    async def __call__(self, invoke: Any, request: Any = None, **more: Any) -> Any:
        class Task(CompositeTask):
            async def invoke(self, request: Any) -> Any:
                return await invoke(request)

        self.runtime = Memory(*tasks.ALL, **more)
        with use(self.runtime):
            return await Task()(request)

    @property
    def segments(self) -> list[Segment]:
        assert sorted(self.runtime.segments) == list(range(len(self.runtime.segments)))
        return list(self.runtime.segments.values())

    @property
    def shapes(self) -> list[list[str]]:
        """Return the tasks by segment."""
        return [[node.task for node in segment.nodes] for segment in self.segments]


def _make_document(segment: Segment, seed: int) -> Invocation:
    count = len(segment.nodes)
    return Invocation(
        WIRE_VERSION, "memory", "app", "", "", "", 0, seed, 0.0, 0.0, "r", segment.nodes, segment.outputs, ("",) * count,
        ("",) * count,
    )  # fmt: skip
