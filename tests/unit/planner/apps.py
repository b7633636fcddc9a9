"""Registered apps as stored."""

from typing import Any

from omnibus.app_record import AppRecord, AppSource, TaskRecord

ROOT = "/apps"


def make_task(kind: str, model: str = "", component: str = "", **changes: Any) -> TaskRecord:
    """Return an own unit task of the module ``words`` with the usual name."""
    name = "-".join(filter(None, [kind, model, component]))
    record_fields = {
        "name": name, "kind": kind, "model": model, "component": component, "service": "generator", "own": True,
        "cls": f"words:{kind.capitalize()}", "fields": {}, "root": ROOT,
    }  # fmt: skip
    return TaskRecord(**{**record_fields, **changes})


def make_app(
    name: str, *tasks: TaskRecord, timestamp: float = 1000.0, kind: str = "directory", version: int = 1
) -> AppRecord:
    return AppRecord(
        name=name, version=version, source=AppSource(kind, name, ROOT), route="", model="", tasks=tasks, request={},
        response={}, streams=False, doc="", created=timestamp, updated=timestamp,
    )  # fmt: skip
