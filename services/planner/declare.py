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

All but ``family`` and ``checkpoint`` may be left out: the family says it. A model may share components
with another one, whose options it then names: ``"shares": {"vision": "a"}`` and ``"options": ["a/E", "L"]``.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path as File

import msgspec

from omnibus.errors import BadRequest
from omnibus.plan import ModelPlan, Option, Path, cut, request_type
from services.planner import shares
from services.planner.model import Declared, Model, Share, require
from services.planner.names import Names

__all__ = ["Declarations", "Declared", "plans", "read"]


class Declarations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: dict[str, Declared]


def read(path: str) -> dict[str, Declared]:
    """Read a declarations file; an empty ``path`` declares nothing. Raises ``BadRequest`` that names file and fault."""
    if not path:
        return {}
    try:
        return msgspec.json.decode(File(path).read_bytes(), type=Declarations).models
    except OSError as error:
        raise BadRequest(f"OMNIBUS_PLANNER_MODELS={path!r} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise BadRequest(f"{path}: {error}") from error


def plans(models: Mapping[str, Declared]) -> dict[str, ModelPlan]:
    """The plan of each model: for each request type every declared path that can serve it.

    Raises ``BadRequest`` that names the model and its fault.
    """
    whole = {name: Model(name, declared) for name, declared in models.items()}
    found, names = {}, Names()
    for name, model in whole.items():
        found[name] = _plan(model, whole)
        names.take(name, found[name], model.shares)
    return found


def _plan(model: Model, models: Mapping[str, Model]) -> ModelPlan:
    options = {
        **{name: _engine(model, option) for name, option in model.options.items()},
        **shares.options(model, models),
    }
    paths = [Path("", dict(_runs(model, share, options)), share.share) for share in model.paths]
    return ModelPlan(
        family=model.declared.family,
        checkpoint=model.declared.checkpoint,
        components=model.components,
        encoders=model.encoders,
        options=options,
        types={request_type(model.components, used): cut(paths, model.components, used) for used in model.types()},
        voices=model.voices,
        context=model.declared.context,
        tasks={component: model.task(component) for component in model.components},
    )


def _engine(model: Model, option: Option) -> Option:
    return msgspec.structs.replace(option, engine=option.engine or model.engine)


def _runs(model: Model, share: Share, options: Mapping[str, Option]) -> Iterator[tuple[str, str]]:
    """Each component and the first option of ``share`` that runs it."""
    for component in model.components:
        runs = next((name for name in share.options if component in options[name].components), None)
        require(runs is not None, model.name, f"path {share.options} runs no {component}")
        yield component, str(runs)
