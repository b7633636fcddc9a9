"""Components of apps that share processes, by a plan from their profile.

The planner plans all components that apps call as one model, ``apps``: own unit tasks, and models that are a single
component. Each of its options is a process that runs a set of them. The models keep their names and their requests,
and send them to these processes.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from omnibus.app_record import AppRecord
from omnibus.families.catalog import PYTHON, HostedPart
from omnibus.plan import DeploymentOption, ModelPlan, Path
from omnibus.profile import ModelProfile
from omnibus_planner.declared.app_models import ENGINE, collect_tasks
from omnibus_planner.declared.model import DeclaredModel, Model
from omnibus_planner.declared.planned_spec import ALL, PlannedModel, check_planned_model

#: Name of the model that stands for all components of apps.
APPS = "apps"
SHARED_ENGINE = "omnibus.executor.service:engine"
_SERVICES = ("llm", "generator", "encoder")
#: Engine of a declared model that names none.
_ENGINE_DEFAULT = "omnibus_engines:transformers"
#: Kind of a component in simulations: work that ends with its result.
_KIND = "any"

_encode = msgspec.json.Encoder(order="deterministic").encode


class AppsModel(Model):
    """All components of apps as one planned model. Its components are those of its profile.

    Any set of components can share a process. The plan does not follow the load: that of a gateway counts parts of
    requests to apps.
    """

    def __init__(self, settings: PlannedModel, components: tuple[str, ...] = ()) -> None:
        check_planned_model(APPS, settings)
        self._settings = msgspec.structs.replace(settings, adapt=False, learn=False, options=settings.options or ALL)
        self.name, self.engine, self.planned = APPS, SHARED_ENGINE, self._settings
        self.declared = DeclaredModel(PYTHON, "", planned=self._settings)
        self.components = components
        self.kinds = dict.fromkeys(components, _KIND)
        self.encoders, self.shares, self.equal_shares, self.usual, self.options = {}, {}, {}, {}, {}
        self.voices, self.paths = (), ()

    def with_profile(self, profile: ModelProfile) -> "AppsModel":
        """Return this model with the components of ``profile``."""
        return AppsModel(self._settings, profile.components)

    def build_plan(self, options: dict[str, DeploymentOption], types: dict[str, tuple[Path, ...]]) -> ModelPlan:
        """Return the plan of its processes. ``share_processes`` adds the code that they run."""
        return ModelPlan(PYTHON, "", self.components, {}, options, types)

    def option_name(self, components: Sequence[str]) -> str:
        """Return the first words of ``components``, or their names if these are equal."""
        words = {part: part.partition("-")[0] for part in self.components}
        short = len({*words.values()}) == len(words)
        return "-".join(words[part] if short else part for part in components)


def share_processes(
    plan: ModelPlan, apps: Mapping[str, AppRecord], models: Mapping[str, ModelPlan]
) -> dict[str, ModelPlan]:
    """Return the processes of ``plan``, and the ``models`` whose components they run.

    It is empty until all components of the plan are there: apps are registered one after another.
    """
    known_hosts = {**_own_tasks(apps), **_single_components(models)}
    if not {*plan.components} <= known_hosts.keys():
        return {}
    hosts = {name: known_hosts[name] for name in plan.components}
    options = {name: _with_service(option, hosts) for name, option in plan.options.items()}
    processes = msgspec.structs.replace(
        plan,
        options=options,
        checkpoint=_encode([host.part for host in hosts.values()]).decode(),
        tasks={name: host.task for name, host in hosts.items()},
        apps=tuple(sorted({app for host in hosts.values() for app in host.apps})),
    )
    borrowers = {
        host.model: _served_by(processes, name, models[host.model]) for name, host in hosts.items() if host.model
    }
    return {APPS: processes, **borrowers}


class _Host(NamedTuple):
    """A component as a shared process runs it: its unit task, and its declared model if it has one."""

    part: HostedPart
    task: str
    service: str
    model: str = ""
    apps: frozenset[str] = frozenset()


def _own_tasks(apps: Mapping[str, AppRecord]) -> dict[str, _Host]:
    """Return the own unit tasks of apps by name."""
    return {
        task.record.name: _Host(
            HostedPart(task.record.name, task.component_name, PYTHON, _encode([task.record]).decode(), ENGINE),
            task.record.name,
            task.record.service,
            apps=frozenset(task.apps),
        )
        for task in collect_tasks(apps)
    }


def _single_components(models: Mapping[str, ModelPlan]) -> dict[str, _Host]:
    """Return those of ``models`` that are a single component, by name."""
    return {
        name: _Host(
            HostedPart(
                name, plan.components[0], plan.family, plan.checkpoint, option.engine or _ENGINE_DEFAULT, plan.context
            ),
            plan.tasks[plan.components[0]],
            option.service,
            name,
        )
        for name, plan in models.items()
        if len(plan.components) == 1 and plan.tasks
        for option in list(plan.options.values())[:1]
    }


def _with_service(option: DeploymentOption, hosts: Mapping[str, _Host]) -> DeploymentOption:
    """Return ``option`` with the service whose libraries its components need: the first of theirs in ``_SERVICES``."""
    services = {hosts[name].service for name in option.components}
    return msgspec.structs.replace(option, service=next(each for each in _SERVICES if each in services))


def _served_by(processes: ModelPlan, component: str, model: ModelPlan) -> ModelPlan:
    """Return ``model`` with the ``processes`` of its component as options."""
    own = model.components
    hosts = {f"{APPS}/{name}": each for name, each in processes.options.items() if component in each.components}
    paths = tuple(Path(name, {own[0]: name}, float(each.replicas)) for name, each in hosts.items())
    return msgspec.structs.replace(
        model,
        options={name: DeploymentOption(own, each.service, replicas=0, of=name) for name, each in hosts.items()},
        types=dict.fromkeys(model.types, paths),
    )
