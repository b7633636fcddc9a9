"""Unit tasks of apps and the plan: executors, users, and conflicts."""

import re
import time
from collections.abc import Iterator, Mapping

from omnibus.app.module_loader import UPLOAD
from omnibus.app_record import AppRecord, TaskRecord, base_app_name
from omnibus.bus.subjects import subject_token
from omnibus.errors import BadRequest, Conflict, StageUnavailable
from omnibus.plan import ModelPlan, Plan
from omnibus_gateway.apps.response_schemas import ExecutorView, TaskView
from omnibus_gateway.core import Router

#: User of the tasks of a plan's models, in addition to apps.
CHAT = "chat"

# The SDK checks the same for developers; this check holds for untrusted workers.
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


def own_tasks(record: AppRecord) -> dict[str, TaskRecord]:
    """Return the unit tasks with an engine of the app, by name."""
    return {task.name: task for task in record.tasks if task.own}


def check_app(record: AppRecord, plan: Plan | None, apps: Mapping[str, AppRecord]) -> None:
    """Check that an app can run, and does not affect others. Raises ``BadRequest`` and ``Conflict``."""
    _check_names(record)
    if own_tasks(record) and record.source.kind == UPLOAD:
        names = ", ".join(own_tasks(record))
        raise BadRequest(
            f"an uploaded app cannot bring its own unit tasks ({names}): install it, or register it from a directory"
        )
    if (record.tasks or record.model) and plan is None:
        raise StageUnavailable("there is no plan yet: try again in a moment", stage="planner")
    if plan is not None:
        _check_model(record, plan)
        _check_bound(record, plan)
        _check_own(record, plan, apps)


def _check_names(record: AppRecord) -> None:
    if not _NAME.fullmatch(record.name):
        raise BadRequest(
            f"{record.name[:80]!r} cannot name an app: use lower-case letters, digits, '-' and '_'", param="name"
        )
    if record.name == CHAT:
        raise Conflict(f"{CHAT!r} is reserved for the plan's models: give the app another name", param="name")
    if bool(record.model) != bool(record.all_routes) or (record.model and not _MODEL.fullmatch(record.model)):
        raise BadRequest(f"{record.model[:80]!r} cannot name a model: use letters, digits and '._:/-'", param="model")


def _check_model(record: AppRecord, plan: Plan) -> None:
    model_names = {*plan.models, *(adapter for model in plan.models.values() for adapter in model.adapters)}
    if record.model and record.model in model_names:
        raise Conflict(f"{record.model!r} is a model of the plan: give the app's model another name", param="model")


def _check_bound(record: AppRecord, plan: Plan) -> None:
    owners = plan.task_owners()
    missing = [task.name for task in record.tasks if not task.own and task.name not in owners]
    if missing:
        models = ", ".join(sorted(name for name, model in plan.models.items() if not model.apps)) or "none"
        raise BadRequest(
            f"the app needs the unit tasks {', '.join(missing)}, which no model here runs (models: {models}). "
            "See `GET /v1/tasks` for the available tasks"
        )


def _check_own(record: AppRecord, plan: Plan, apps: Mapping[str, AppRecord]) -> None:
    record_tasks = own_tasks(record)
    owners = plan.task_owners()
    for name in record_tasks:
        models = [model for model, _ in owners.get(name, ()) if not plan.models[model].apps]
        if models:
            raise Conflict(f"the unit task {name} is the model {models[0]!r}'s already: give yours another `kind`")
    for other in apps.values():
        if base_app_name(other.name) == record.name:
            continue
        for name, other_task in own_tasks(other).items():
            if name in record_tasks and not record_tasks[name].equals(other_task):
                raise Conflict(
                    f"the app {base_app_name(other.name)!r} brings another unit task {name} ({other_task.cls}): equal "
                    "names are one and the same task, so give yours another `kind`"
                )


def missing_executor_reason(record: AppRecord, router: Router) -> str:
    """Return why an own unit task of the app cannot run; empty if all can."""
    owners = router.plan.task_owners() if router.plan is not None else {}
    for name, task in own_tasks(record).items():
        if name not in owners:  # its plan is staged until its executor is ready
            fault = router.members.start_fault(task.model or name)
            return (
                f"the unit task {name} has no executor: its executor ended with {fault}"
                if fault
                else f"no plan has the unit task {name}: is a planner running?"
            )
        if not any(_has_ready_executor(task, model, component, router) for model, component in owners[name]):
            faults = (router.members.start_fault(model) for model, _ in owners[name])
            fault = next(filter(None, faults), "")
            reason = f"its executor ended with {fault}" if fault else "see the planner's and the executors' log"
            return f"the unit task {name} has no executor: {reason}"
    return ""


def _has_ready_executor(task: TaskRecord, model: str, component: str, router: Router) -> bool:
    """Return True if an executor with this code of ``task`` is ready."""
    model_plan = router.get_model(model)
    if task.code not in model_plan.checkpoint or router.stage_states(model).get(component) != "ok":
        return False
    return any(
        status.model == model
        and component in status.components
        and status.option in model_plan.options
        and status.origin == model_plan.option_origin(status.option)
        for status in router.members.statuses()
        if status.state == "ready"
    )


def list_task_views(router: Router, apps: Mapping[str, AppRecord]) -> tuple[TaskView, ...]:
    """List all unit tasks of plan and apps, with users and executors."""
    plan = router.plan
    owners = plan.task_owners() if plan is not None else {}
    users: dict[str, set[str]] = {}
    kinds: dict[str, TaskRecord] = {}
    for app in apps.values():
        for task in app.tasks:
            users.setdefault(task.name, set()).add(base_app_name(app.name))
            kinds[task.name] = task
    views = []
    for name in sorted(owners.keys() | kinds.keys()):
        bound = owners.get(name, ())
        task_users = users.get(name, set())
        if plan is not None and any(not plan.models[model].apps for model, _ in bound):
            task_users = task_users | {CHAT}
        model, component = bound[0] if bound else (kinds[name].model, kinds[name].component)
        views.append(
            TaskView(
                name=name,
                kind=kinds[name].kind if name in kinds else name.removesuffix(subject_token(f"-{model}-{component}")),
                own=name in kinds and kinds[name].own,
                model=model,
                component=component,
                models=tuple(sorted({model for model, _ in bound})),
                users=tuple(sorted(task_users)),
                executors=_executor_views(router, plan, bound),
            )
        )
    return tuple(views)


def _executor_views(router: Router, plan: Plan | None, bound: tuple[tuple[str, str], ...]) -> tuple[ExecutorView, ...]:
    options = {
        model_option
        for model, component in bound
        if plan is not None
        for model_option in _executor_options(model, plan.models[model], component)
    }
    now = time.monotonic()
    views = []
    for status in router.members.statuses():
        member = router.members.get(status.id)
        if member is not None and (status.model, status.option) in options:
            state = status.state if status.state != "ready" else member.health_state(now)
            views.append(ExecutorView(status.id, status.model, status.option, state))
    return tuple(sorted(views, key=lambda executor: executor.id))


def _executor_options(name: str, model: ModelPlan, component: str) -> Iterator[tuple[str, str]]:
    """Yield the model and option of each executor that runs ``component``."""
    for option, option_plan in model.options.items():
        if component in option_plan.components:
            lender, _, lent = option_plan.of.rpartition("/")
            yield (lender, lent) if option_plan.of else (name, option)
