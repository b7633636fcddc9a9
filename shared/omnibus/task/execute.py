"""Unit tasks that are their own engine: a class with ``run``, hosted by an executor.

    class Shout(UnitTask[Words, Loud]):
        async def run(self, words: Words) -> Loud:
            return Loud(text=words.text.upper())

``run`` gets its inputs as declared, with arrays for tensors, async iterators for streams and plain values for values.
It returns its outputs, with all parts of a stream in a list. Or it is a generator that yields ``{"output": part}`` for
each part of a stream, and values and arrays once. A plain ``def run`` runs in a thread, and gets streams as complete
lists.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import BaseModel, ValidationError

from omnibus.errors import BadRequest, StageFailed
from omnibus.task.result import STREAM, TENSOR, VALUE, decode_part, encode_item, type_adapter
from omnibus.task.types import TaskOutput
from omnibus.tensors.handle import Item


class TaskJob(Protocol):
    """Part of ``omnibus.executor.runner.Job`` that ``execute_task`` needs."""

    @property
    def inputs(self) -> Mapping[str, Any]: ...
    async def value(self, name: str) -> Any: ...
    def stream(self, name: str) -> AsyncIterator[Item]: ...
    def has_consumer(self, output: str) -> bool: ...
    async def put(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None: ...
    async def send(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None: ...
    def close(self, output: str, data: dict[str, Any] | None = None) -> None: ...


_END = object()
_ASYNC_GENERATOR, _COROUTINE, _PLAIN = range(3)
#: Number of functions whose kind is cached.
_MAX_KNOWN_FUNCTIONS = 1024


class ComputingTime(Protocol):
    """Block in which a task computes; inside of ``pause`` it waits. See ``omnibus.executor.job_clock.JobOccupancy``."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *failure: Any) -> bool | None: ...
    def pause(self) -> AbstractContextManager[None]: ...


class _Uncounted(nullcontext[None]):
    def pause(self) -> AbstractContextManager[None]:
        return self


_UNCOUNTED = _Uncounted()


async def execute_task(task: Any, job: TaskJob, computing: ComputingTime = _UNCOUNTED) -> None:
    """Run ``task`` once, with inputs and outputs of ``job``. Raises ``BadRequest`` for invalid inputs.

    ``computing`` surrounds the task's own ``run``, and starts once all inputs are complete except the streams that
    ``run`` reads itself. It pauses while ``run`` waits for the next part of an input, or until an output is read.
    """
    job = _PausingJob(job, computing)
    inputs = await _read_inputs(task.inputs_type, job)
    how = _kind_of_run(type(task).run)
    if how == _ASYNC_GENERATOR:
        with computing:
            async for output in task.run(inputs):
                await _send_outputs(task, job, output, _single_part)
    elif how == _COROUTINE:
        with computing:
            await _send_outputs(task, job, await task.run(inputs), _parts_of)
    else:
        inputs = await _collect_streams(task.inputs_type, inputs)
        with computing:
            await _in_thread(task, job, inputs)
    for name, (kind, _, _) in task.outputs_type.fields.items():
        if kind == STREAM:
            job.close(name)


class _PausingJob:
    """``job`` with its waits excluded from ``computing``."""

    def __init__(self, job: TaskJob, computing: ComputingTime) -> None:
        self._job = job
        self._pause = computing.pause
        self.value, self.has_consumer, self.close = job.value, job.has_consumer, job.close

    @property
    def inputs(self) -> Mapping[str, Any]:
        return self._job.inputs

    async def stream(self, name: str) -> AsyncIterator[Item]:
        parts = aiter(self._job.stream(name))
        while True:
            with self._pause():
                part = await anext(parts, None)
            if part is None:
                return
            yield part

    async def put(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        with self._pause():
            await self._job.put(output, data, array)

    async def send(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        with self._pause():
            await self._job.send(output, data, array)


@lru_cache(_MAX_KNOWN_FUNCTIONS)
def _kind_of_run(run: Any) -> int:
    """Return the kind of ``run``, cached because ``inspect`` takes several microseconds."""
    if inspect.isasyncgenfunction(run):
        return _ASYNC_GENERATOR
    return _COROUTINE if inspect.iscoroutinefunction(run) else _PLAIN


async def _in_thread(task: Any, job: TaskJob, inputs: Any) -> None:
    if not inspect.isgeneratorfunction(task.run):
        await _send_outputs(task, job, await asyncio.to_thread(task.run, inputs), _parts_of)
        return
    parts = task.run(inputs)
    while (output := await asyncio.to_thread(next, parts, _END)) is not _END:
        await _send_outputs(task, job, output, _single_part)


# Inputs


async def _read_inputs(input_type: Any, job: TaskJob) -> Any:
    """Return the inputs as declared; a missing input has its default."""
    values: dict[str, Any] = {}
    for name, (kind, element) in input_type.fields.items():
        if kind == STREAM and name not in job.inputs:
            values[name] = _decode_parts(job, name, element)
            continue
        value = _resolve_values(await job.value(name))
        if value is not None or name in job.inputs:
            values[name] = _validate_value(input_type, name, value) if kind == VALUE else value
    return input_type.model_construct(**values)


def _validate_value(input_type: type[BaseModel], name: str, value: Any) -> Any:
    """Convert JSON to the declared models. Values with arrays are not changed."""
    if _has_array(value):
        return value
    field = input_type.model_fields[name]
    kind: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    try:
        return type_adapter(kind).validate_python(value)
    except ValidationError as error:
        where = f"{input_type.__name__}.{name}"
        raise BadRequest(f"{where}: {error.errors(include_url=False)[0]['msg']}", param=name) from error


def _has_array(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_array(each) for each in value)
    if isinstance(value, dict):
        return any(_has_array(each) for each in value.values())
    return isinstance(value, np.ndarray)


def _resolve_values(value: Any) -> Any:
    """Replace results by their values, also in lists and dicts."""
    if isinstance(value, Item):
        return decode_part(Any, value)
    if isinstance(value, list):
        return [_resolve_values(each) for each in value]
    if isinstance(value, dict):
        return {key: _resolve_values(each) for key, each in value.items()}
    return value


async def _decode_parts(job: TaskJob, name: str, element: Any) -> AsyncIterator[Any]:
    async for each in job.stream(name):
        yield decode_part(element, each)


async def _collect_streams(input_type: Any, inputs: Any) -> Any:
    """Return ``inputs`` with streams as lists."""
    streams = [name for name, (kind, _) in input_type.fields.items() if kind == STREAM]
    read = {
        name: [each async for each in getattr(inputs, name)] for name in streams if getattr(inputs, name) is not None
    }
    return input_type.model_construct(**{**inputs.__dict__, **read})


# Outputs

#: Splits a value for a stream into its parts: one part, or all.
Cut = Callable[[Any], AsyncIterator[Any]]


async def _send_outputs(task: Any, job: TaskJob, output: Any, cut: Cut) -> None:
    """Send the outputs that ``run`` returned or yielded."""
    fields = task.outputs_type.fields
    if isinstance(output, TaskOutput):
        output, cut = output.__dict__, _parts_of
    if not isinstance(output, Mapping):
        output = {} if output is None else {next(iter(fields)): output}
    for name, value in output.items():
        if name not in fields:
            raise StageFailed(f"{task.name} returned the unknown output {name!r}; its outputs are {', '.join(fields)}")
        if not job.has_consumer(name):
            continue
        kind = fields[name][0]
        if kind == VALUE:
            await job.put(name, *encode_item(value))
        elif kind == TENSOR and value is not None:
            await job.put(name, {}, np.atleast_1d(np.asarray(value)))
        elif value is not None:
            async for each in cut(value):
                await job.send(name, *encode_item(each))


async def _single_part(value: Any) -> AsyncIterator[Any]:
    yield value


async def _parts_of(value: Any) -> AsyncIterator[Any]:
    if hasattr(value, "__aiter__"):
        async for each in value:
            yield each
        return
    for each in value if isinstance(value, list | tuple) else [value]:
        yield each
