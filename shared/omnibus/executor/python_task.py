"""The engine of unit tasks from apps: the task's class is its own engine.

``OMNIBUS_EXECUTOR_SOURCE``, or else the checkpoint, lists the classes to import: a JSON list of ``TaskRecord``.
``omnibus.task.execute`` calls a task's ``run``; only executors of such tasks load it.
"""

import asyncio
import importlib
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import msgspec

from omnibus.app_record import TaskRecord
from omnibus.errors import BadRequest, Forbidden
from omnibus.executor.job_clock import JobOccupancy, OccupancyTimer
from omnibus.executor.runner import Job, Runner
from omnibus.executor.settings import ExecutorSettings

log = logging.getLogger(__name__)

_decode = msgspec.json.Decoder(list[TaskRecord]).decode

Execute = Callable[[Any, Job, JobOccupancy], Awaitable[None]]


def engine(component: str, settings: ExecutorSettings) -> Runner:
    """Return the runner of the app's unit task ``component``.

    Raises ``BadRequest`` if the task is not in the records, cannot be imported, or was renamed. Raises ``Forbidden``
    for code that this executor may not run.
    """
    record = _find_record(component, settings.source or settings.checkpoint)
    _check_root(record, settings.apps_dir)
    execute: Execute = importlib.import_module("omnibus.task.execute").execute_task
    return OwnRunner(record, instantiate_task(record), execute)


class OwnRunner:
    """Runs one unit task's ``run``, between its optional ``load`` and ``close``."""

    def __init__(self, record: TaskRecord, task: Any, execute: Execute) -> None:
        self._record = record
        self._task = task
        self._execute = execute
        self._computing = OccupancyTimer()

    @property
    def busy(self) -> float:
        return self._computing.seconds

    async def load(self) -> None:
        await _call_if_defined(self._task, "load")

    async def run(self, job: Job) -> None:
        await self._execute(self._task, job, self._computing())

    async def close(self) -> None:
        await _call_if_defined(self._task, "close")

    def stats(self) -> dict[str, Any]:
        return {"task": self._record.name, "class": self._record.cls}


def instantiate_task(record: TaskRecord) -> Any:
    """Return the unit task of ``record``. Raises ``BadRequest`` if it differs from the registered one."""
    task_class = _import_class(record)
    _check_class(record, task_class)
    names = []
    for component in _component_names(record):
        try:
            task = task_class(**{"model": record.model, "component": component, **record.fields})
            names.append(task.name)
        except Exception as error:  # any error of the app's class
            raise BadRequest(
                f"{_describe_task(record)} cannot be made of {record.fields}: {_describe_error(error)}"
            ) from error
        if task.name == record.name:
            return _check_runnable(record, task)
    raise BadRequest(f"{_describe_task(record)} is now named {names[0]!r}; register its app again")


def _component_names(record: TaskRecord) -> list[str]:
    """Return the possible component names of the task; without a name it is its kind."""
    return [record.component] if record.component not in ("", record.kind) else ["", record.kind]


def _check_runnable(record: TaskRecord, task: Any) -> Any:
    if not callable(getattr(task, "run", None)):
        raise BadRequest(f"{_describe_task(record)} no longer has a method run(self, inputs); register its app again")
    return task


def _find_record(component: str, source: str) -> TaskRecord:
    try:
        records = _decode(source)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"OMNIBUS_EXECUTOR_SOURCE must be a JSON list of task records: {error}") from error
    parts = {record.component or record.kind: record for record in records}
    if component not in parts:
        raise BadRequest(
            f"OMNIBUS_EXECUTOR_SOURCE has no component {component!r}; there is {', '.join(parts) or 'none'}"
        )
    return parts[component]


def _import_class(record: TaskRecord) -> Any:
    module, _, path = record.cls.partition(":")
    if record.root:
        _add_import_root(record)
    try:
        value: Any = importlib.import_module(module)
        if record.root:
            _check_origin(record, value)
        for name in path.split("."):
            value = getattr(value, name)
    except BadRequest:
        raise
    except (Exception, SystemExit) as error:  # any error of the app's module
        log.error("%s cannot be imported", _describe_task(record), exc_info=error)
        raise BadRequest(f"{_describe_task(record)} cannot be imported: {_describe_error(error)}") from error
    return value


def _check_root(record: TaskRecord, apps_dir: str) -> None:
    """Reject a directory that this executor's operator has not allowed; records come from the store."""
    if not record.root:
        return
    if not apps_dir:
        raise Forbidden(f"{_describe_task(record)} has its code in a directory; set OMNIBUS_EXECUTOR_APPS_DIR")
    if not Path(record.root).resolve().is_relative_to(Path(apps_dir).resolve()):
        raise Forbidden(f"{_describe_task(record)}: {record.root} is not below OMNIBUS_EXECUTOR_APPS_DIR")


def _check_class(record: TaskRecord, cls: Any) -> None:
    """Reject a class that is not a unit task; records may contain any importable name."""
    task: Any = importlib.import_module("omnibus.task").UnitTask
    if not (isinstance(cls, type) and issubclass(cls, task)):
        raise BadRequest(f"{_describe_task(record)} is not a unit task; register its app again")


def _add_import_root(record: TaskRecord) -> None:
    if not Path(record.root).is_dir():
        raise BadRequest(f"{_describe_task(record)} needs the directory {record.root}; mount it on this node too")
    if record.root not in sys.path:
        sys.path.insert(0, record.root)
        importlib.invalidate_caches()


def _check_origin(record: TaskRecord, module: Any) -> None:
    """Reject another loaded module of the same name, which has other code."""
    there = PathFinder.find_spec(module.__name__.partition(".")[0], [record.root])
    origin = getattr(module, "__file__", None)
    if there is not None and not (origin and Path(origin).resolve().is_relative_to(Path(record.root).resolve())):
        raise BadRequest(
            f"{_describe_task(record)} has its module {module.__name__!r} in {record.root}, but {origin} is loaded; "
            "rename the app's module"
        )


async def _call_if_defined(task: Any, name: str) -> None:
    method = getattr(task, name, None)
    if method is None:
        return
    if inspect.iscoroutinefunction(method):
        await method()
    else:
        await asyncio.to_thread(method)


def _describe_task(record: TaskRecord) -> str:
    return f"unit task {record.name!r} ({record.cls})"


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
