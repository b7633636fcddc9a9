"""Declared deployments: what an operator writes about a model, checked and turned into paths.

{"models": {"qwen2.5-vl-tiny": {
    "family": "qwen2_5_vl", "checkpoint": "/models/qwen2_5_vl",
    "components": ["vision", "thinker"],
    "encoders": {"image": "vision", "video": "vision"},
    "options": {"E":  {"components": ["vision"], "service": "encoder"},
                "L":  {"components": ["thinker"], "service": "llm"},
                "EL": {"components": ["vision", "thinker"], "service": "llm"}},
    "paths": [{"options": ["E", "L"], "share": 70}, {"options": ["EL"], "share": 30}]}}}
"""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path as File

import msgspec

from omnibus.errors import BadRequest
from omnibus.plan import ModelPlan, Option, Path, request_type


class Share(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options that together run the model, and their share of the requests."""

    options: tuple[str, ...]
    share: float = 1.0


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model: its components in the order in which data flows, its options and its paths."""

    family: str
    checkpoint: str
    components: tuple[str, ...]
    encoders: dict[str, str]
    options: dict[str, Option]
    paths: tuple[Share, ...]
    voices: tuple[str, ...] = ()
    context: int = 0


class Declarations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: dict[str, Declared]


def read(path: str) -> dict[str, Declared]:
    """Read and check a declarations file; raises ``BadRequest`` that names model and fault."""
    try:
        body = File(path).read_bytes()
        models = msgspec.json.decode(body, type=Declarations).models
    except OSError as error:
        raise BadRequest(f"OMNIBUS_PLANNER_MODELS={path!r} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise BadRequest(f"{path}: {error}") from error
    for name, declared in models.items():
        _check(name, declared)
    return models


def model_plan(declared: Declared) -> ModelPlan:
    """The plan of one model: for each request type every declared path that can serve it."""
    types = {request_type(declared.components, used): tuple(_paths(declared, used)) for used in _types(declared)}
    return ModelPlan(
        family=declared.family,
        checkpoint=declared.checkpoint,
        components=declared.components,
        encoders=declared.encoders,
        options=declared.options,
        types=types,
        voices=declared.voices,
        context=declared.context,
    )


def _types(declared: Declared) -> Iterator[frozenset[str]]:
    """All sets of components that a request may use: any encoders, the thinker, with or without speech."""
    encoders = sorted(set(declared.encoders.values()))
    speech = [component for component in declared.components if component in ("talker", "vocoder")]
    for count in range(len(encoders) + 1):
        for chosen in combinations(encoders, count):
            yield frozenset([*chosen, "thinker"])
            if speech:
                yield frozenset([*chosen, "thinker", *speech])


def _paths(declared: Declared, used: frozenset[str]) -> Iterator[Path]:
    """Declared paths cut down to ``used``; equal ones are merged and their shares added."""
    merged: dict[tuple[tuple[str, str], ...], float] = {}
    for share in declared.paths:
        runs = tuple(
            (component, next(name for name in share.options if component in declared.options[name].components))
            for component in declared.components
            if component in used
        )
        merged[runs] = merged.get(runs, 0.0) + share.share
    for runs, rate in merged.items():
        yield Path(">".join(dict.fromkeys(option for _, option in runs)), dict(runs), rate)


def _check(name: str, declared: Declared) -> None:
    known = set(declared.components)
    _require("thinker" in known, name, "has no thinker, which every chat request needs")
    for modality, component in declared.encoders.items():
        _require(component in known, name, f"encoder of {modality} is {component!r}, which is no component")
    for option, spec in declared.options.items():
        _require(set(spec.components) <= known, name, f"option {option} has unknown components {spec.components}")
        _require(spec.replicas >= 0, name, f"option {option} has {spec.replicas} replicas")
    _require(bool(declared.paths), name, "declares no path")
    for share in declared.paths:
        _require(share.share >= 0, name, f"path {share.options} has a negative share")
        unknown = [option for option in share.options if option not in declared.options]
        _require(not unknown, name, f"path {share.options} uses undeclared options {unknown}")
        covered = {component for option in share.options for component in declared.options[option].components}
        _require(covered >= known, name, f"path {share.options} runs no {sorted(known - covered)}")
    _require(sum(share.share for share in declared.paths) > 0, name, "all paths have share 0")


def _require(good: bool, model: str, fault: str) -> None:
    if not good:
        raise BadRequest(f"model {model}: {fault}")
