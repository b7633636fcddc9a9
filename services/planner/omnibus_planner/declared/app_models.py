"""Unit tasks of apps with their own engine, as models.

Equal tasks of all apps share one model. A model of this kind has one option per unit task. Its ``checkpoint`` lists the
classes for executors to import, as a JSON list of ``TaskRecord``.
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from omnibus.app_record import AppRecord, TaskRecord, base_app_name
from omnibus.bus.subjects import subject_token
from omnibus.errors import BadRequest
from omnibus.families.catalog import PYTHON
from omnibus.plan import DeploymentOption, ModelPlan, Path, request_type
from omnibus_planner.declared.bus_names import BusNames, shared_components
from omnibus_planner.declared.model import SERVICES

log = logging.getLogger(__name__)

ENGINE = "omnibus.executor.python_task:engine"

_encode = msgspec.json.Encoder(order="deterministic").encode


@dataclass
class AppTask:
    """A unit task of apps: its first app, and all apps that use it."""

    record: TaskRecord
    by: str
    apps: set[str] = field(default_factory=set)

    @property
    def component_name(self) -> str:
        return self.record.component or self.record.kind


def app_models(
    apps: Mapping[str, AppRecord], declared_models: Mapping[str, ModelPlan], hosted_tasks: Collection[str] = ()
) -> dict[str, ModelPlan]:
    """Return models for the own unit tasks of ``apps`` without ``hosted_tasks``.

    They do not include the ``declared_models`` ones. A task that cannot be served is logged and left out: one app's
    fault must not stop the others.
    """
    models: dict[str, ModelPlan] = {}
    names = BusNames()
    for name, model in declared_models.items():
        if model.apps:  # shared processes, whose unit tasks have the names of their own models
            continue
        names.claim_names(name, model, shared_components(model))
    tasks_left = [task for task in collect_tasks(apps) if task.record.name not in hosted_tasks]
    for name, tasks in _group_by_model(tasks_left, declared_models).items():
        plan = _build_model_plan(tasks)
        try:
            names.claim_names(name, plan, {})
        except BadRequest as error:
            log.error("no executor for the tasks of %s: %s", ", ".join(plan.apps), error.message)
            continue
        models[name] = plan
    return models


def collect_tasks(apps: Mapping[str, AppRecord]) -> list[AppTask]:
    """Collect own unit tasks by name, first those of older apps.

    So running tasks stay as they are when an app is registered. If a task has new code, the newest version counts.
    Executors of the old code serve until the new ones are ready.
    """
    tasks_by_name: dict[str, AppTask] = {}
    newest: dict[str, float] = {}
    for app in sorted(apps.values(), key=lambda app: (app.created, app.name)):
        for record in app.tasks:
            if not record.own:
                continue
            fault = _find_fault(app, record)
            own = tasks_by_name.get(record.name)
            if own is not None and not own.record.equals(record):
                if own.by == base_app_name(app.name):  # its next version: it replaces the task once it is current
                    continue
                fault = (
                    f"{', '.join(sorted(own.apps))} brings another unit task of that name "
                    f"({_describe_source(own.record)}, not {_describe_source(record)}): give one of them another `kind`"
                )
            if fault:
                log.error("unit task %r of app %r is not served: %s", record.name, app.name, fault)
                continue
            name = base_app_name(app.name)
            own = tasks_by_name.setdefault(record.name, AppTask(record, name))
            own.apps.add(name)
            if app.updated >= newest.get(record.name, 0.0):
                newest[record.name], own.record = app.updated, record
    return list(tasks_by_name.values())


def _describe_source(record: TaskRecord) -> str:
    return f"{record.cls} in {record.root}" if record.root else record.cls


def _find_fault(app: AppRecord, record: TaskRecord) -> str:
    """Return the reason why the task cannot be served; empty if it can."""
    part = record.component or record.kind
    if app.source.kind == "upload":
        return "an uploaded app cannot contain code for executors: mount its directory or install it"
    if record.service not in SERVICES:
        return f"there is no service {record.service!r}; there is {', '.join(SERVICES)}"
    if subject_token(record.name) != record.name or subject_token(part) != part:
        return f"its name and its component {part!r} must consist of letters, digits, - and _"
    module, _, name = record.cls.partition(":")
    return "" if module and name else f"{record.cls!r} names no module:Class"


def _group_by_model(tasks: list[AppTask], declared_models: Mapping[str, ModelPlan]) -> dict[str, dict[str, AppTask]]:
    """Group the tasks of one model by component. A task whose name is in use becomes a separate model."""
    groups: dict[str, dict[str, AppTask]] = {}

    def is_free(model: str, own: AppTask) -> bool:
        # Executors restart when their model changes, so other apps' models are not changed.
        other_tasks = groups.get(model, {})
        return (
            model not in declared_models
            and own.component_name not in other_tasks
            and all(other.by == own.by for other in other_tasks.values())
        )

    for own in tasks:
        names = [own.record.model or own.record.name, own.record.name]
        model = next((name for name in names if is_free(name, own)), None)
        if model is None:
            log.error("unit task %r of %s is not served: a model has its name", own.record.name, ", ".join(own.apps))
            continue
        groups.setdefault(model, {})[own.component_name] = own
    return groups


def _build_model_plan(tasks: Mapping[str, AppTask]) -> ModelPlan:
    components = tuple(sorted(tasks))
    path = Path(">".join(components), {part: part for part in components}, 1.0)
    return ModelPlan(
        family=PYTHON,
        checkpoint=_encode([tasks[part].record for part in components]).decode(),
        components=components,
        encoders={},
        options={part: DeploymentOption((part,), tasks[part].record.service, engine=ENGINE) for part in components},
        types={request_type(components, frozenset(components)): (path,)},
        tasks={part: tasks[part].record.name for part in components},
        apps=tuple(sorted(_app_names(tasks))),
    )


def _app_names(tasks: Mapping[str, AppTask]) -> Iterator[str]:
    for own in tasks.values():
        yield from own.apps
