"""Declared deployments: what an operator writes about models, checked and turned into plans.

{"models": {"qwen2.5-vl-tiny": {
    "family": "qwen2_5_vl", "checkpoint": "/models/qwen2_5_vl",
    "components": ["vision", "thinker"],
    "encoders": {"image": "vision", "video": "vision"},
    "tasks": {"vision": "encode", "thinker": "think"},
    "options": {"E":  {"components": ["vision"], "service": "encoder"},
                "L":  {"components": ["thinker"], "service": "llm"},
                "EL": {"components": ["vision", "thinker"], "service": "llm"}},
    "paths": [{"options": ["E", "L"], "share": 70}, {"options": ["EL"], "share": 30}]}}}

All but ``family`` and ``checkpoint`` may be left out: the family says it. Instead of options and paths a model
may say ``"planned": {...}`` (``asked.py``), to be planned from its profile within the file's ``gpus`` and ``nodes``:
{"gpus": {"H100": {"count": 8, "memory_gb": 80}}, "nodes": {"n1": {"gpus": 8}}, "models": {...}}. A model may
share components with another one, whose options it then names: ``"shares": {"vision": "a"}`` and
``"options": ["a/E", "L"]``.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path as File

import msgspec

from omnibus.errors import BadRequest
from omnibus.graph import UNREADABLE
from omnibus.plan import ModelPlan, Option, Path, cut, request_type
from services.planner.declared import shared_components
from services.planner.declared.bus_names import Names
from services.planner.declared.model import Declared, Model, Share, require
from services.planner.declared.planned_spec import GpuType, Machine, check_gpus

__all__ = ["Declarations", "Declared", "declarations", "planned", "plans", "read"]


class Declarations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: dict[str, Declared]
    gpus: dict[str, GpuType] = {}
    nodes: dict[str, Machine] = {}


def read(path: str) -> dict[str, Declared]:
    """The models of a declarations file. Raises as ``declarations`` does."""
    return declarations(path).models


def declarations(path: str) -> Declarations:
    """Read a declarations file; an empty ``path`` declares nothing. Raises ``BadRequest`` that names file and fault."""
    if not path:
        return Declarations({})
    try:
        found = msgspec.json.decode(File(path).read_bytes(), type=Declarations)
        check_gpus(found.gpus, found.nodes)
        return found
    except BadRequest as error:
        raise BadRequest(f"{path}: {error.message}") from error
    except OSError as error:
        raise BadRequest(f"OMNIBUS_PLANNER_MODELS={path!r} cannot be read: {error.strerror}") from error
    except UNREADABLE as error:
        raise BadRequest(f"{path}: {error}") from error


def plans(models: Mapping[str, Declared]) -> dict[str, ModelPlan]:
    """The plan of each model: for each request type every declared path that can serve it.

    Models that are to be planned are checked and left out: ``planned`` has them. Raises ``BadRequest`` that names
    the model and its fault.
    """
    whole = {name: Model(name, declared) for name, declared in models.items()}
    found, names = {}, Names()
    for name, model in whole.items():
        for owner in model.shares.values():
            both = owner in whole and (whole[owner].planned is None) == (model.planned is None)
            require(both or owner not in whole, name, f"shares with {owner}: plan both of them, or none")
        if model.planned is not None:
            continue
        found[name] = _plan(model, whole)
        names.take(name, found[name], model.shares)
    return found


def planned(models: Mapping[str, Declared]) -> dict[str, Model]:
    """The models that are to be planned."""
    return {name: Model(name, declared) for name, declared in models.items() if declared.planned is not None}


def _plan(model: Model, models: Mapping[str, Model]) -> ModelPlan:
    options = {
        **{name: _engine(model, option) for name, option in model.options.items()},
        **shared_components.options(model, models),
    }
    paths = [Path("", dict(_runs(model, share, options)), share.share) for share in model.paths]
    return model.plan(
        options, {request_type(model.components, used): cut(paths, model.components, used) for used in model.types()}
    )


def _engine(model: Model, option: Option) -> Option:
    return msgspec.structs.replace(option, engine=option.engine or model.engine)


def _runs(model: Model, share: Share, options: Mapping[str, Option]) -> Iterator[tuple[str, str]]:
    """Each component and the first option of ``share`` that runs it."""
    for component in model.components:
        runs = next((name for name in share.options if component in options[name].components), None)
        require(runs is not None, model.name, f"path {share.options} runs no {component}")
        yield component, str(runs)
