"""Declared deployments: an operator's descriptions of models, checked and turned into plans.

    {"models": {"qwen2.5-vl-tiny": {
        "family": "qwen2_5_vl", "checkpoint": "/models/qwen2_5_vl",
        "components": ["vision", "thinker"],
        "encoders": {"image": "vision", "video": "vision"},
        "tasks": {"vision": "encode", "thinker": "think"},
        "options": {"E":  {"components": ["vision"], "service": "encoder"},
                    "L":  {"components": ["thinker"], "service": "llm"},
                    "EL": {"components": ["vision", "thinker"], "service": "llm"}},
        "paths": [{"options": ["E", "L"], "share": 70}, {"options": ["EL"], "share": 30}]}}}

Only ``family`` and ``checkpoint`` are required: the family provides the rest. Instead of options and paths a model can
have ``"planned": {...}`` (``planned_spec.py``). It is then planned from its profile, within the file's ``gpus`` and
``nodes``:

    {"gpus": {"H100": {"count": 8, "memory_gb": 80}}, "nodes": {"n1": {"gpus": 8, "link_gb_s": 1.25}}, "models": {...}}

A model can share components with another one, whose options it then names: ``"shares": {"vision": "a"}`` and
``"options": ["a/E", "L"]``. Equal encoders share without that. ``"cells": 2`` is two equal cells. LoRA adapters of its
language model are ``"adapters": {"pirate": "/adapters/pirate"}``.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path as File

import msgspec

from omnibus.cells import join_cells
from omnibus.errors import BadRequest
from omnibus.graph import UNREADABLE
from omnibus.plan import CPU, DeploymentOption, ModelPlan, Path, PriceList, cut_paths, request_type
from omnibus_planner.declared import shared_components
from omnibus_planner.declared.bus_names import BusNames
from omnibus_planner.declared.equal_components import share_equal_components
from omnibus_planner.declared.model import DeclaredModel, DeclaredPath, Model, require_valid_model
from omnibus_planner.declared.planned_spec import DeclaredNode, GpuType, PlannedModel, check_gpus, check_planned_model
from omnibus_planner.declared.shared_processes import APPS, AppsModel

__all__ = ["Declarations", "DeclaredModel", "build_static_plans", "planned_models", "read_declarations", "read_models"]


class Declarations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: dict[str, DeclaredModel]
    gpus: dict[str, GpuType] = {}
    nodes: dict[str, DeclaredNode] = {}
    #: Of the prices of ``gpus``, as "EUR"; empty: they compare options, and requests have no price in money.
    currency: str = ""
    #: Plan of the processes that components of apps share (``shared_processes``).
    apps: PlannedModel | None = None

    @property
    def prices(self) -> PriceList:
        """Prices that requests are charged by."""
        gpu_types = self.gpus if self.currency else {}
        return PriceList(self.currency, {name: kind.weight for name, kind in gpu_types.items()})


def read_models(path: str) -> dict[str, DeclaredModel]:
    """Read the models of a declarations file. Raises the errors of ``read_declarations``."""
    return read_declarations(path).models


def read_declarations(path: str) -> Declarations:
    """Read a declarations file; an empty ``path`` declares nothing.

    Raises ``BadRequest`` with the file and its fault.
    """
    if not path:
        return Declarations({})
    try:
        declarations = msgspec.json.decode(File(path).read_bytes(), type=Declarations)
        check_gpus(declarations.gpus, declarations.nodes, declarations.currency)
        _check_apps(declarations)
        return declarations
    except BadRequest as error:
        raise BadRequest(f"{path}: {error.message}") from error
    except OSError as error:
        raise BadRequest(f"OMNIBUS_PLANNER_MODELS={path!r} cannot be read: {error.strerror}") from error
    except UNREADABLE as error:
        raise BadRequest(f"{path}: {error}") from error


def _check_apps(declarations: Declarations) -> None:
    """Raise ``BadRequest`` for a plan of apps that the planner cannot follow."""
    if declarations.apps is None:
        return
    check_planned_model(APPS, declarations.apps)
    if APPS in declarations.models:
        raise BadRequest(f"a model cannot be named {APPS!r} if apps are planned: give it another name")
    if declarations.apps.cells or declarations.apps.policy:
        raise BadRequest("apps support neither cells nor policies: leave 'cells' and 'policy' out")
    if not declarations.gpus and not declarations.nodes:
        raise BadRequest(f"apps need places for their processes: declare 'gpus' with a count of {CPU!r}")


def build_static_plans(models: Mapping[str, DeclaredModel]) -> dict[str, ModelPlan]:
    """Return the plan of each static model: per request type, every declared path that can serve it.

    Models to plan are checked and left out (``planned_models``). Raises ``BadRequest`` with the model and its fault.
    """
    whole = _complete_models(models)
    _check_adapter_names(models)
    plans, names = {}, BusNames()
    for name, model in whole.items():
        for owner in model.shares.values():
            is_consistent = owner in whole and (whole[owner].planned is None) == (model.planned is None)
            require_valid_model(
                is_consistent or owner not in whole, name, f"shares with {owner}: plan both of them, or none"
            )
        if model.planned is not None:
            continue
        plan = _build_plan(model, whole)
        plans[name] = join_cells([plan] * model.declared.cells) if model.declared.cells else plan
        names.claim_names(name, plans[name], model.shares)
    return plans


def _complete_models(models: Mapping[str, DeclaredModel]) -> dict[str, Model]:
    """Return the models, with equal encoders shared. Raises ``BadRequest``."""
    whole = {name: Model(name, declaration) for name, declaration in models.items()}
    share_equal_components(whole)
    return whole


def _check_adapter_names(models: Mapping[str, DeclaredModel]) -> None:
    """Raise ``BadRequest`` if models or adapters have the same name.

    Requests name both in one field.
    """
    owners = {name: f"model {name}" for name in models}
    for name, model in models.items():
        for adapter in model.adapters:
            other = owners.setdefault(adapter, f"adapter {adapter} of {name}")
            require_valid_model(
                other == f"adapter {adapter} of {name}", name, f"adapter {adapter} has the name of {other}: rename one"
            )


def planned_models(models: Mapping[str, DeclaredModel], apps: PlannedModel | None = None) -> dict[str, Model]:
    """Return the models to plan. One of them stands for the components of ``apps``, if these are planned."""
    own: dict[str, Model] = {} if apps is None else {APPS: AppsModel(apps)}
    return own | {name: model for name, model in _complete_models(models).items() if model.planned is not None}


def _build_plan(model: Model, models: Mapping[str, Model]) -> ModelPlan:
    options = {
        **{name: _with_engine(model, option) for name, option in model.options.items()},
        **shared_components.shared_options(model, models),
    }
    paths = [Path("", dict(_assign_components(model, share, options)), share.share) for share in model.paths]
    return model.build_plan(
        options,
        {
            request_type(model.components, used_components): cut_paths(paths, model.components, used_components)
            for used_components in model.request_types()
        },
    )


def _with_engine(model: Model, option: DeploymentOption) -> DeploymentOption:
    return msgspec.structs.replace(option, engine=option.engine or model.engine)


def _assign_components(
    model: Model, share: DeclaredPath, options: Mapping[str, DeploymentOption]
) -> Iterator[tuple[str, str]]:
    """Yield each component and the first option of ``share`` that runs it."""
    for component in model.components:
        runs = next((name for name in share.options if component in options[name].components), None)
        require_valid_model(runs is not None, model.name, f"path {share.options} runs no {component}")
        yield component, str(runs)
