"""Unit tasks that bring their own engine: a class with ``run``, hosted by an executor as it stands.

    class Shout(UnitTask[Words, Loud]):
        async def run(self, words: Words) -> Loud:
            return Loud(text=words.text.upper())

``run`` gets its inputs as they are declared, with arrays in place of tensors, async iterators in place of
streams and values in place of values. It returns its outputs, or is an async generator that yields
``{"output": part}`` for streams, and values and arrays once. A plain ``def run`` works in a thread.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

import numpy as np
from pydantic import BaseModel, TypeAdapter, ValidationError

from omnibus.errors import BadRequest, StageFailed
from omnibus.task.elements import item, part, whole
from omnibus.task.result import STREAM, TENSOR
from omnibus.task.types import TaskOutput, kind_of
from omnibus.tensors.item import Item


class Job(Protocol):
    """What ``execute`` needs of ``omnibus.executor.contract.Job``."""

    @property
    def inputs(self) -> Mapping[str, Any]: ...
    async def value(self, name: str) -> Any: ...
    def stream(self, name: str) -> AsyncIterator[Item]: ...
    def wants(self, output: str) -> bool: ...
    async def put(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None: ...
    async def send(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None: ...
    def close(self, output: str, data: dict[str, Any] | None = None) -> None: ...


async def execute(task: Any, job: Job) -> None:
    """Run ``task`` once: inputs from ``job``, outputs to it."""
    inputs = await _inputs(task.inputs_type, job)
    if inspect.isasyncgenfunction(task.run):
        async for told in task.run(inputs):
            await _tell(task, job, told)
    elif inspect.iscoroutinefunction(task.run):
        await _tell(task, job, await task.run(inputs))
    else:
        await _tell(task, job, await asyncio.to_thread(task.run, inputs))
    for name, (kind, _, _) in task.outputs_type.fields.items():
        if kind == STREAM:
            job.close(name)


async def _inputs(declared: type[BaseModel], job: Job) -> Any:
    found: dict[str, Any] = {}
    for name, field in declared.model_fields.items():
        kind, element = kind_of(field.annotation)
        if kind == STREAM:
            found[name] = _parts(job, name, element)
        else:
            found[name] = _real(await job.value(name), field.annotation)
    values = {name: value for name, value in found.items() if value is not None}
    plain = {name: value for name, value in values.items() if not _is_special(value)}
    try:  # defaults of what was not given, and models in place of their JSON
        made = {name: _check(declared.model_fields[name].annotation, value) for name, value in plain.items()}
    except ValidationError as error:
        raise BadRequest(f"{declared.__name__}: {error.errors()[0]['msg']}", param=declared.__name__) from error
    return declared.model_construct(**{**values, **made})


def _check(annotation: Any, value: Any) -> Any:
    return TypeAdapter(annotation).validate_python(value)


def _is_special(value: Any) -> bool:
    """Arrays and streams are what they are."""
    if isinstance(value, list | tuple):
        return any(_is_special(each) for each in value)
    return isinstance(value, np.ndarray) or hasattr(value, "__anext__")


def _real(value: Any, annotation: Any) -> Any:
    if isinstance(value, Item):
        return part(Any, value) if value.array is None or not value.data else whole(annotation, [value], "input")
    if isinstance(value, list):
        return [_real(each, annotation) for each in value]
    return value


async def _parts(job: Job, name: str, element: Any) -> AsyncIterator[Any]:
    async for each in job.stream(name):
        yield part(element, each)


async def _tell(task: Any, job: Job, told: Any) -> None:
    """Send what ``run`` returned or yielded."""
    given = told.__dict__ if isinstance(told, TaskOutput) else told
    if not isinstance(given, Mapping):
        name = next(iter(task.outputs_type.fields))
        given = {name: told}
    for name, value in given.items():
        declared = task.outputs_type.fields.get(name)
        if declared is None:
            raise StageFailed(
                f"{task.name} gave {name!r}, which is not among its outputs {', '.join(task.outputs_type.fields)}"
            )
        if value is not None and job.wants(name):
            await _send(job, name, declared[0], declared[1], value)


async def _send(job: Job, name: str, kind: str, element: Any, value: Any) -> None:
    if kind == STREAM:
        parts = value if isinstance(value, list) else [value]
        for each in parts:
            await job.send(name, *item(element, each))
    elif kind == TENSOR:
        await job.put(name, {}, np.atleast_1d(np.asarray(value)))
    else:
        await job.put(name, *item(element, value))
