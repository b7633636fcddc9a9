"""The plan of a question: the current one, one of a file, or a new one for the given GPUs."""

from collections.abc import Mapping
from pathlib import Path as File
from typing import Any

import msgspec

from omnibus import profile as profiles
from omnibus.cells import base_option
from omnibus.errors import BadRequest
from omnibus.executor.sim.profile import read_profile
from omnibus.families.plugins import join_names
from omnibus.graph import UNREADABLE
from omnibus.plan import ModelPlan, Plan, decode_plan
from omnibus.plan_goals import ModelGoals
from omnibus.profile import ModelProfile
from omnibus.settings import PlannerSettings, read_settings
from omnibus.store import Store
from omnibus_planner.declared import declarations_file
from omnibus_planner.declared.declarations_file import Declarations
from omnibus_planner.declared.model import DeclaredModel, Model
from omnibus_planner.declared.planned_spec import DeclaredNode, GpuType, PlannedModel
from omnibus_planner.optimize.cell_plans import divide_into_cells
from omnibus_planner.optimize.model_inputs import ModelInputs
from omnibus_planner.optimize.planner import Planner
from omnibus_planner.optimize.promise import PromiseChecker
from omnibus_planner.optimize.simulated import calibrated_devices, planned_links, simulated_models, simulation_links
from omnibus_planner.simulate.cluster import SimulatedModel
from omnibus_planner.simulate.devices import ModelDevices, simulated_devices
from omnibus_planner.simulate.links import Links
from omnibus_planner.whatif.question import CURRENT, WhatIfQuestion, parse_gpus


class Deployment(msgspec.Struct, frozen=True):
    """Models with their current or hypothetical deployment.

    ``label`` describes the plan, and ``prices`` are those of a GPU.
    """

    label: str
    models: dict[str, Model]
    profiles: dict[str, ModelProfile]
    plans: dict[str, ModelPlan]
    simulated: dict[str, SimulatedModel]
    goals: dict[str, ModelGoals]
    prices: dict[str, float]
    links: Links


class _Sources(msgspec.Struct):
    """Declarations and their directory, and a plan if there is one."""

    declared: Declarations
    directory: File
    plan: Plan | None = None
    label: str = ""


async def find_deployment(question: WhatIfQuestion, store: Store) -> Deployment:
    """Find the deployment of ``question``. Raises ``BadRequest`` with its fault."""
    sources = await _read_sources(question, store)
    counts, models = parse_gpus(question.gpus), _planned_models(sources)
    model_profiles = {name: await _read_profile(name, model, sources, store) for name, model in models.items()}
    gpus = _gpu_types(sources.declared.gpus, counts)
    nodes = {} if counts else sources.declared.nodes
    if sources.plan is not None and not counts:
        model_inputs: Mapping[str, ModelInputs] = {
            name: ModelInputs(model, model_profiles[name], {}, nodes) for name, model in models.items()
        }
        for inputs in model_inputs.values():
            inputs.borrow_options(models, model_inputs)
        label, plans = sources.label, {name: sources.plan.models[name] for name in models}
        explain: Mapping[str, Any] = sources.plan.explain
    else:
        planner = Planner(models, model_profiles, gpus, nodes)
        result = PromiseChecker(planner).plan(within=read_settings(PlannerSettings).simulate)
        model_inputs, plans, explain = planner.inputs, divide_into_cells(result, {}), result.explain
        label = f"planned now for {_describe_gpus(gpus, nodes)}"
    _check_options(plans, model_inputs)
    devices = {name: _model_devices(inputs, question) for name, inputs in model_inputs.items()}
    return Deployment(
        label=label,
        models=models,
        profiles=model_profiles,
        plans=plans,
        simulated=simulated_models(model_inputs, plans, devices, explain),
        goals={name: each.planned.goals.of_model() for name, each in models.items() if each.planned},
        prices={name: kind.weight for name, kind in gpus.items()},
        links=simulation_links(nodes) if nodes else planned_links(explain),
    )


async def _read_sources(question: WhatIfQuestion, store: Store) -> _Sources:
    """Read the documents that ``plan`` and ``models`` name; without either, the current plan."""
    declarations = declarations_file.read_declarations(question.models) if question.models else Declarations({})
    sources = _Sources(declarations, File(question.models or ".").parent)
    plan_name = question.plan or ("" if question.models else CURRENT)
    if plan_name == CURRENT:
        sources.plan = await store.plan()
        if sources.plan is None:
            raise BadRequest("the store has no plan yet: name declarations by --models, or a plan's file by --plan")
        sources.label = f"epoch {sources.plan.epoch} as it runs"
    elif plan_name:
        _read_plan_file(plan_name, sources)
    return sources


def _read_plan_file(path: str, sources: _Sources) -> None:
    """Read a plan, or declarations, from a file.

    A plan is as ``omnibus plan show --json`` prints it, or as the store has it.
    """
    try:
        body = File(path).read_bytes()
        document = msgspec.json.decode(body)
    except OSError as error:
        raise BadRequest(f"--plan {path} cannot be read: {error.strerror}") from error
    except UNREADABLE as error:
        raise BadRequest(f"--plan {path} is not JSON: {error}") from error
    if isinstance(document, dict) and isinstance(document.get("plan"), dict):
        document = document["plan"]
    if isinstance(document, dict) and "epoch" in document:
        sources.plan = decode_plan(msgspec.json.encode(document))
        sources.label = f"epoch {sources.plan.epoch} of {path}"
    elif not sources.declared.models:
        sources.declared, sources.directory = declarations_file.read_declarations(path), File(path).parent
    else:
        raise BadRequest(f"--plan {path} is not a plan: give the output of `omnibus plan show --json`")


def _planned_models(sources: _Sources) -> dict[str, Model]:
    """Return the planned models: as declared, else as in the plan."""
    declared_models = declarations_file.planned_models(sources.declared.models)
    if sources.plan is None:
        models = declared_models
    else:
        models = {
            name: declared_models.get(name) or Model(name, _declaration_of(plan))
            for name, plan in sources.plan.models.items()
            if not plan.apps
        }
    if not models:
        raise BadRequest("there is no model that is planned from a profile: see docs/planner.md")
    return models


def _declaration_of(plan: ModelPlan) -> DeclaredModel:
    """Return the declaration of a model that has only a plan."""
    shares = {
        part: option.of.rpartition("/")[0]
        for option in plan.options.values()
        if option.of
        for part in option.components
    }
    return DeclaredModel(
        plan.family, plan.checkpoint, plan.components, plan.encoders, context=plan.context, shares=shares,
        planned=PlannedModel(),
    )  # fmt: skip


async def _read_profile(name: str, model: Model, sources: _Sources, store: Store) -> ModelProfile:
    path = sources.directory / model.planned.profile if model.planned and model.planned.profile else None
    if path is not None:
        try:
            return profiles.decode_profile(path.read_bytes(), str(path))
        except OSError as error:
            raise BadRequest(f"the profile {path} of model {name} cannot be read: {error.strerror}") from error
    stored_profile = await store.profile(name)
    if stored_profile is None:
        raise BadRequest(
            f"model {name} has no profile in the store: name its declarations by --models, or measure it with "
            "`omnibus profile --put`"
        )
    return stored_profile


def _gpu_types(declared_types: Mapping[str, GpuType], counts: Mapping[str, int]) -> dict[str, GpuType]:
    """Return GPUs by type: with the number in ``counts``, and declared memory and price."""
    if not counts:
        return dict(declared_types)
    return {
        name: msgspec.structs.replace(declared_types.get(name, GpuType(0)), count=count)
        for name, count in counts.items()
    }


def _describe_gpus(gpus: Mapping[str, GpuType], nodes: Mapping[str, DeclaredNode]) -> str:
    return join_names([f"{kind.count} {name}" for name, kind in gpus.items()]) or f"{len(nodes)} nodes"


def _check_options(plans: Mapping[str, ModelPlan], model_inputs: Mapping[str, ModelInputs]) -> None:
    for name, plan in plans.items():
        own = {base_option(plan, each) for each, option in plan.options.items() if not option.of}
        strange = sorted(own - set(model_inputs[name].options))
        if strange:
            raise BadRequest(f"the profile of model {name} has no option {strange[0]}: measure it again")


def _model_devices(inputs: ModelInputs, question: WhatIfQuestion) -> ModelDevices:
    """Return devices by the profile, or by the times of simulated engines."""
    if not question.engine_profile:
        return calibrated_devices(inputs)
    model = inputs.model
    return simulated_devices(model.components, model.kinds, model.encoders, read_profile(question.engine_profile))
