"""Tests of apps and tasks without services: graphs run in this process, in milliseconds.

    from omnibus.testing import LocalRuntime
    import my_app

    async def test_it_answers_in_capitals():
        with LocalRuntime(my_app, {Think: {"text": ["two ", "cats"]}}) as runtime:
            answer = await my_app.serve(Question(text="What is this?"))
        assert answer.text == "TWO CATS"
        assert runtime.calls[0].inputs["messages"][0]["content"] == "What is this?"

Unit tasks that bring their own engine run. For others, a *play* provides the outputs by name. A play may also be a
function of the inputs that returns the outputs or yields them in parts. Graphs are recorded, replayed and verified as
in a gateway.
"""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Self

import msgspec
import numpy as np

from omnibus.app.introspect import module_tasks
from omnibus.errors import BadRequest, OmnibusError, ProtocolError, StageFailed
from omnibus.graph import GraphNode, as_ref
from omnibus.task import Segment, TaskOutput, UnitTask, tasks_of, use
from omnibus.task.execute import execute_task
from omnibus.task.input_codec import FROM
from omnibus.task.result import STREAM, decode_part, encode_item, unwrap_value
from omnibus.tensors.handle import Item

__all__ = ["LocalRuntime", "TaskCall"]

#: Outputs of a task: by name, or a function of its inputs.
Play = Mapping[str, Any] | Callable[[Any], Any]


@dataclass(frozen=True)
class TaskCall:
    """One call of a unit task: its name, and its inputs as JSON.

    In them, ``{"$ref": ...}`` stands for a result. ``pinned`` or ``choose`` set the path ``pinned``.
    """

    task: str
    inputs: Mapping[str, Any]
    pinned: str = ""


class LocalRuntime:
    """Runs the tasks that are called inside ``with``.

    ``calls`` are the calls of graphs, in order, and ``media`` the files that the app placed. ``tasks`` is an app's
    module, a task, or a list or dict of tasks. ``plays`` are for classes of unit tasks, or for the names of single
    ones. ``point`` in [0, 1) determines the result of ``choose``.
    """

    def __init__(
        self, tasks: Any, plays: Mapping[type[UnitTask] | str, Play] | None = None, point: float = 0.0
    ) -> None:
        task_list = module_tasks(tasks) if isinstance(tasks, ModuleType) else tasks_of(tasks)
        self.calls: list[TaskCall] = []
        self.media: list[bytes] = []
        self._tasks = {task.name: task for task in task_list}
        self._plays = dict(plays or {})
        self._point = point
        self._pipes: dict[tuple[int, int, str], _Pipe] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._scope: AbstractContextManager[None] | None = None

    def __enter__(self) -> Self:
        self._scope = use(self)
        self._scope.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        assert self._scope is not None  # noqa: S101 - it was entered
        self._scope.__exit__(*error)
        for task in self._running:
            task.cancel()

    async def submit(self, segment: Segment, step: int) -> "Mapping[tuple[int, str], _Reader]":
        """Start every call of ``segment``. Raises ``BadRequest`` for a task without an engine and a play."""
        tasks = [self._find_engine(node) for node in segment.nodes]
        for index, task in enumerate(tasks):
            self._pipes |= {(step, index, output): _Pipe() for output in task.outputs_type.fields}
        for index, (node, task) in enumerate(zip(segment.nodes, tasks, strict=True)):
            self.calls.append(TaskCall(node.task, node.inputs, segment.pins[index] if segment.pins else ""))
            running = asyncio.get_running_loop().create_task(self._run_call(node, task, step, index))
            self._running.add(running)
            running.add_done_callback(self._running.discard)
        return {origin: _Reader(self._pipes[step, *origin]) for origin in segment.outputs}

    async def place_media(self, data: bytes, modality: str) -> dict[str, Any]:
        """Store the file in ``media``; its reference in calls has its number as ``file``."""
        self.media.append(data)
        return {"modality": modality or "image", "nbytes": len(data), "file": len(self.media) - 1}

    def choice_point(self, site: int) -> float:
        return self._point

    def _find_engine(self, node: GraphNode) -> Any:
        """Return the engine of a call: the task itself, or its play."""
        task = self._tasks.get(node.task)
        if task is None:
            there = ", ".join(self._tasks) or "none"
            raise BadRequest(
                f"unknown unit task {node.task!r}: pass the app's module or the task to the runtime ({there})"
            )
        play = self._plays.get(task.name)
        if play is None:
            play = next((self._plays[kind] for kind in type(task).__mro__ if kind in self._plays), None)
        if play is not None:
            return _PlayedTask(task, play)
        if not task.own:
            kind = type(task).__name__
            raise BadRequest(
                f"{task.name} has no engine here. Pass its outputs, LocalRuntime(..., {{{kind}: {{...}}}})"
            )
        return task

    async def _run_call(self, node: GraphNode, task: Any, step: int, index: int) -> None:
        pipes = {output: self._pipes[step, index, output] for output in task.outputs_type.fields}
        error: OmnibusError | None = None
        try:
            inputs = {name: await self._resolve_input(value, step) for name, value in node.inputs.items()}
            job = _LocalJob(inputs, pipes)
            await (task.play(job) if isinstance(task, _PlayedTask) else execute_task(task, job))
        except OmnibusError as failed:
            error = failed
        except Exception as failed:  # noqa: BLE001 - as an executor does it
            error = StageFailed(f"{node.task} failed: {type(failed).__name__}: {failed}")
            error.__cause__ = failed
        finally:
            for pipe in pipes.values():
                pipe.close(error)

    async def _resolve_input(self, value: Any, step: int) -> Any:
        """Return ``value`` with pipes for this segment's results, values for earlier ones."""
        origin = as_ref(value)
        if origin is not None:
            return self._pipes[step, *origin]
        if isinstance(value, list):
            return [await self._resolve_input(each, step) for each in value]
        if not isinstance(value, dict):
            return value
        if FROM not in value:
            return {name: await self._resolve_input(each, step) for name, each in value.items()}
        item = await self._pipes[tuple(value[FROM])].first_item()
        return unwrap_value(item.data) if item.array is None else item.array


class _MissingOutput(ProtocolError):
    """A task ended without a value that is read."""


class _PlayedTask:
    """A unit task whose outputs come from a play."""

    def __init__(self, task: UnitTask, play: Play) -> None:
        self.name = task.name
        self.inputs_type, self.outputs_type = task.inputs_type, task.outputs_type
        self._play = play

    async def play(self, job: "_LocalJob") -> None:
        async for name, part in self._iter_outputs(await self._read_inputs(job)):
            if name not in self.outputs_type.fields:
                raise StageFailed(
                    f"the play of {self.name} returns {name!r}: its outputs are {', '.join(self.outputs_type.fields)}"
                )
            is_stream = self.outputs_type.fields[name][0] == STREAM
            await (job.send if is_stream else job.put)(name, *encode_item(self._adapt_part(name, part)))

    async def _read_inputs(self, job: "_LocalJob") -> Any:
        """Return the declared inputs, without an engine's checks; None for what another play left out."""
        values: dict[str, Any] = {}
        for name, (kind, element) in self.inputs_type.fields.items():
            if kind == STREAM:
                values[name] = _decode_parts(element, job.stream(name))
            elif name in job.given:
                value = await job.value_or_none(name)
                values[name] = json.loads(bytes(value)) if isinstance(value, msgspec.Raw) else value
        return self.inputs_type.model_construct(**values)

    async def _iter_outputs(self, inputs: Any) -> AsyncIterator[tuple[str, Any]]:
        answer = self._play(inputs) if callable(self._play) else self._play
        answer = await answer if inspect.isawaitable(answer) else answer
        if hasattr(answer, "__aiter__"):
            async for output in answer:
                for name, part in output.items():
                    yield name, part
            return
        for output in answer if inspect.isgenerator(answer) else [answer]:
            whole: Any = output.__dict__ if isinstance(output, TaskOutput) else output
            for name, value in whole.items():
                for part in self._split_parts(name, value):
                    yield name, part

    def _split_parts(self, name: str, value: Any) -> Sequence[Any]:
        kind = self.outputs_type.fields[name][0] if name in self.outputs_type.fields else ""
        return value if kind == STREAM and isinstance(value, list | tuple) else [value]

    def _adapt_part(self, name: str, part: Any) -> Any:
        """Return a part with the text ``part``, if parts have ``text``."""
        element = self.outputs_type.fields[name][1]
        return element(text=part) if isinstance(part, str) and "text" in getattr(element, "model_fields", {}) else part


class _Pipe:
    """One output of one call, stored whole for any number of readers."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.error: OmnibusError | None = None
        self._closed = False
        self._changed = asyncio.Event()

    def write(self, item: Item) -> None:
        if not self._closed:
            self.items.append(item)
            self._changed.set()

    def close(self, error: OmnibusError | None = None) -> None:
        if not self._closed:
            self.error, self._closed = error, True
            self._changed.set()

    async def wait_for_items(self, count: int) -> list[Item]:
        """Wait for ``count`` items, or the end; return the items so far."""
        while len(self.items) < count and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        if len(self.items) < count and self.error is not None:
            raise self.error
        return self.items

    async def first_item(self) -> Item:
        items = await self.wait_for_items(1)
        if not items:
            raise _MissingOutput("a task returned no value for an output that is read: add it to its play")
        return items[0]


class _Reader:
    """A reader of a pipe; see ``omnibus.task.Source``."""

    def __init__(self, pipe: _Pipe) -> None:
        self._pipe = pipe
        self._position = 0

    async def next_items(self) -> list[Item]:
        items = (await self._pipe.wait_for_items(self._position + 1))[self._position :]
        self._position += len(items)
        return items


class _LocalJob:
    """One call, as ``omnibus.task.execute`` uses it; see ``TaskJob``."""

    def __init__(self, inputs: Mapping[str, Any], outputs: Mapping[str, _Pipe]) -> None:
        self.inputs = {name: value for name, value in inputs.items() if not _holds_pipe(value)}
        self.given = inputs
        self._outputs = outputs

    async def value(self, name: str) -> Any:
        return await self._read_value(self.given.get(name))

    async def value_or_none(self, name: str) -> Any:
        try:
            return await self.value(name)
        except _MissingOutput:
            return None

    async def _read_value(self, value: Any) -> Any:
        if isinstance(value, _Pipe):
            item = await value.first_item()
            return unwrap_value(item.data) if item.array is None else item.array
        if isinstance(value, list):
            return [await self._read_value(each) for each in value]
        if isinstance(value, dict):
            return {name: await self._read_value(each) for name, each in value.items()}
        return value

    async def stream(self, name: str) -> AsyncIterator[Item]:
        pipe, position = self.given.get(name), 0
        while isinstance(pipe, _Pipe) and len(items := await pipe.wait_for_items(position + 1)) > position:
            yield items[position]
            position += 1

    def has_consumer(self, output: str) -> bool:
        return True

    async def put(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        await self.send(output, data, array)
        self.close(output)

    async def send(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        self._outputs[output].write(Item(data, array))
        await asyncio.sleep(0)  # let readers run, as in an executor

    def close(self, output: str, data: dict[str, Any] | None = None) -> None:
        self._outputs[output].close()


async def _decode_parts(element: Any, items: AsyncIterator[Item]) -> AsyncIterator[Any]:
    async for item in items:
        yield decode_part(element, item)


def _holds_pipe(value: Any) -> bool:
    inner = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    return isinstance(value, _Pipe) or any(map(_holds_pipe, inner))
