"""The engine of unit tasks that apps bring: the task's class is its own engine.

``OMNIBUS_EXECUTOR_SOURCE``, or else the checkpoint, says what to import: a JSON list of ``TaskRecord``.
What a task's ``run`` looks like is known by ``omnibus.task.execute``, which only executors of such tasks load.
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
from omnibus.executor.runner import Job, Runner
from omnibus.executor.settings import ExecutorSettings
from omnibus.executor.stopwatch import JobOccupancy, OccupancyTimer

log = logging.getLogger(__name__)

_decode = msgspec.json.Decoder(list[TaskRecord]).decode

Execute = Callable[[Any, Job, JobOccupancy], Awaitable[None]]


def engine(component: str, settings: ExecutorSettings) -> Runner:
    """The runner of the own unit task that is ``component``.

    Raises ``BadRequest`` when it is not among the records, cannot be imported, or has another name by now, and
    ``Forbidden`` for code that this executor may not run.
    """
    record = _find_record(component, settings.source or settings.checkpoint)
    _check_root(record, settings.apps_dir)
    execute: Execute = importlib.import_module("omnibus.task.execute").execute_task
    return OwnRunner(record, instantiate_task(record), execute)


class OwnRunner:
    """Runs one unit task's own ``run``; its ``load`` and ``close``, if it has them, come before and after."""

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
    """The unit task that ``record`` describes. Raises ``BadRequest`` when it is not what was registered."""
    found = _import_class(record)
    _check_class(record, found)
    names = []
    for component in _component_names(record):
        try:
            task = found(**{"model": record.model, "component": component, **record.fields})
            names.append(task.name)
        except Exception as error:  # whatever a stranger's class raises
            raise BadRequest(
                f"{_describe_task(record)} cannot be made of {record.fields}: {_describe_error(error)}"
            ) from error
        if task.name == record.name:
            return _check_runnable(record, task)
    raise BadRequest(f"{_describe_task(record)} is named {names[0]!r} by now: register its app again")


def _component_names(record: TaskRecord) -> list[str]:
    """Return the component names that the task may have given: one that gives none is called after its kind."""
    return [record.component] if record.component not in ("", record.kind) else ["", record.kind]


def _check_runnable(record: TaskRecord, task: Any) -> Any:
    if not callable(getattr(task, "run", None)):
        raise BadRequest(f"{_describe_task(record)} has no method run(self, inputs) any more: register its app again")
    return task


def _find_record(component: str, source: str) -> TaskRecord:
    try:
        records = _decode(source)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"OMNIBUS_EXECUTOR_SOURCE is no JSON list of task records: {error}") from error
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
        found: Any = importlib.import_module(module)
        if record.root:
            _check_origin(record, found)
        for name in path.split("."):
            found = getattr(found, name)
    except BadRequest:
        raise
    except (Exception, SystemExit) as error:  # whatever a stranger's module does
        log.error("%s cannot be imported", _describe_task(record), exc_info=error)
        raise BadRequest(f"{_describe_task(record)} cannot be imported: {_describe_error(error)}") from error
    return found


def _check_root(record: TaskRecord, apps_dir: str) -> None:
    """Records come from the store: a directory that its operator did not name is none to run code from."""
    if not record.root:
        return
    if not apps_dir:
        raise Forbidden(f"{_describe_task(record)}: tasks from directories are off here: set OMNIBUS_EXECUTOR_APPS_DIR")
    if not Path(record.root).resolve().is_relative_to(Path(apps_dir).resolve()):
        raise Forbidden(f"{_describe_task(record)}: {record.root} is not below OMNIBUS_EXECUTOR_APPS_DIR")


def _check_class(record: TaskRecord, cls: Any) -> None:
    """A record may name anything that can be imported: nothing but a unit task is called."""
    task: Any = importlib.import_module("omnibus.task").UnitTask
    if not (isinstance(cls, type) and issubclass(cls, task)):
        raise BadRequest(f"{_describe_task(record)} is no unit task: register its app again")


def _add_import_root(record: TaskRecord) -> None:
    """Let modules be imported from the record's root."""
    if not Path(record.root).is_dir():
        raise BadRequest(
            f"{_describe_task(record)}: there is no directory {record.root} here; mount it on this node too"
        )
    if record.root not in sys.path:
        sys.path.insert(0, record.root)
        importlib.invalidate_caches()


def _check_origin(record: TaskRecord, module: Any) -> None:
    """Another module of the same name, already loaded, would answer with other code."""
    there = PathFinder.find_spec(module.__name__.partition(".")[0], [record.root])
    origin = getattr(module, "__file__", None)
    if there is not None and not (origin and Path(origin).resolve().is_relative_to(Path(record.root).resolve())):
        raise BadRequest(
            f"{_describe_task(record)}: {module.__name__!r} was imported from {origin}, not from {record.root}: "
            "give the app's module another name"
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
