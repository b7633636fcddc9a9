"""Executors that plans require, as data: kinds, numbers and environments. No I/O."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from omnibus.plan import ModelPlan, Plan

#: Variable with the id of an executor.
ID = "OMNIBUS_EXECUTOR_ID"
#: Variable with the cell of an executor, if its model is in cells.
CELL = "OMNIBUS_EXECUTOR_CELL"
#: Variables with the number of GPUs over which vLLM splits each layer, and of its pipeline stages.
TENSOR_PARALLEL, PIPELINE_PARALLEL = "OMNIBUS_VLLM_TENSOR_PARALLEL", "OMNIBUS_VLLM_PIPELINE_PARALLEL"


class ExecutorKind(NamedTuple):
    """Key of interchangeable executors: each of a kind may replace any other. ``origin`` is ``ModelPlan.origin``."""

    model: str
    option: str
    origin: str

    def __str__(self) -> str:
        return f"{self.model}/{self.option}@{self.origin[:4]}"


class DesiredExecutors(msgspec.Struct, frozen=True):
    """Executors of one kind.

    ``env`` is their environment, except their own ``ID``. ``apps`` are those that brought their model. ``service`` is
    the service that hosts them. Each uses ``gpus`` GPUs of type ``gpu``. ``epoch`` is that of the newest plan that
    requires them.
    """

    kind: ExecutorKind
    replicas: int
    service: str
    gpus: int
    env: dict[str, str]
    apps: tuple[str, ...]
    gpu: str = ""
    epoch: int = 0

    @property
    def tensor_parallel(self) -> int:
        """Return the GPUs of one pipeline stage. By default, vLLM splits each layer over them."""
        return self.gpus // int(self.env.get(PIPELINE_PARALLEL, 1))


def desired_executors(*plans: Plan) -> dict[ExecutorKind, DesiredExecutors]:
    """Return the executors that all ``plans`` require together. Of each kind, this is the largest number in any plan.

    Executors of a shared option belong to the model that lends it. Earlier plans must precede later ones.
    """
    executors: dict[ExecutorKind, DesiredExecutors] = {}
    for each in (one for plan in plans for one in _plan_executors(plan)):
        existing = executors.get(each.kind)
        if existing is not None and existing.replicas >= each.replicas:
            each = msgspec.structs.replace(existing, epoch=max(existing.epoch, each.epoch))
        executors[each.kind] = each
    return executors


def replica_counts(models: Mapping[str, ModelPlan]) -> dict[ExecutorKind, int]:
    """Return the number of executors of each kind that ``models`` require."""
    return {
        ExecutorKind(name, option, model.option_origin(option)): deployed.replicas
        for name, model in models.items()
        for option, deployed in model.options.items()
        if deployed.replicas and not deployed.of
    }


def added_replicas(before: Mapping[str, ModelPlan], after: Mapping[str, ModelPlan]) -> dict[ExecutorKind, int]:
    """Return the kinds of which ``after`` requires more executors than ``before``. The values are the numbers in
    ``after``."""
    there = replica_counts(before)
    return {kind: count for kind, count in replica_counts(after).items() if count > there.get(kind, 0)}


def change_groups(before: Mapping[str, ModelPlan], after: Mapping[str, ModelPlan]) -> list[frozenset[str]]:
    """Return the changed models, grouped by those that must change together. Models are tied if one lends an option to
    the other, or if they share a unit task."""
    changed_models = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    return sorted([names & changed_models for names in tied_models(before, after) if names & changed_models], key=min)


def tied_models(before: Mapping[str, ModelPlan], after: Mapping[str, ModelPlan]) -> list[frozenset[str]]:
    """Return all models, grouped by ties. A model in a group cannot change without a check of the others."""
    ties: dict[str, set[str]] = {}
    for models in (before, after):
        for name, model in models.items():
            for tie in _model_ties(name, model):
                ties.setdefault(tie, set()).add(name)
    left, groups = set(before.keys() | after.keys()), list[frozenset[str]]()
    while left:
        together, fresh = set[str](), {min(left)}
        while fresh:
            together |= fresh
            fresh = {name for names in ties.values() if names & fresh for name in names} - together
        groups.append(frozenset(together & left))
        left -= together
    return groups


def _plan_executors(plan: Plan) -> Iterator[DesiredExecutors]:
    for kind, replicas in replica_counts(plan.models).items():
        model = plan.models[kind.model]
        deployment = model.options[kind.option]
        environment = _executor_environment(kind, model)
        yield DesiredExecutors(
            kind, replicas, deployment.service, deployment.gpus, environment, model.apps, deployment.gpu, plan.epoch
        )


def _executor_environment(kind: ExecutorKind, model: ModelPlan) -> dict[str, str]:
    deployment = model.options[kind.option]
    environment = {
        "MODEL": kind.model,
        "FAMILY": model.family,
        "CHECKPOINT": deployment.checkpoint or model.checkpoint,
        "CONTEXT": str(model.context),
        "OPTION": kind.option,
        "ORIGIN": kind.origin,
        "COMPONENTS": ",".join(deployment.components),
    }
    if all(component in model.tasks for component in deployment.components):
        environment["TASKS"] = ",".join(model.tasks[component] for component in deployment.components)
    if deployment.engine:
        environment["ENGINE"] = deployment.engine
    environment |= {name: str(goal) for name, goal in (("TTFT", model.ttft), ("TBT", model.tbt)) if goal}
    if deployment.cell:
        environment["CELL"] = deployment.cell
    if deployment.batch:
        environment["BATCH"] = str(deployment.batch)
    if deployment.dtype:
        environment["DTYPE"] = deployment.dtype
    if adapters := model.option_adapters(kind.option):
        environment["ADAPTERS"] = msgspec.json.encode(adapters).decode()
    engine = {f"OMNIBUS_VLLM_{name.upper()}": str(value) for name, value in (deployment.vllm or {}).items()}
    return {f"OMNIBUS_EXECUTOR_{name}": value for name, value in environment.items()} | engine


def _model_ties(name: str, model: ModelPlan) -> Iterable[str]:
    yield f"model {name}"
    for option in model.options.values():
        if option.of:
            yield f"model {option.of.rpartition('/')[0]}"
    for task in model.tasks.values():
        yield f"task {task}"
