"""``python -m omnibus_planner.declared FILE``: checks a declarations file, and prints its models or its faults.

``omnibus up`` runs it before it starts anything; see ``omnibus.process.run_module``.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from omnibus.errors import BadRequest
from omnibus.model_defaults import ImageDefaults
from omnibus.plan import LANGUAGE_COMPONENTS, DeploymentOption
from omnibus.process import run_module
from omnibus.suggestions import closest_name
from omnibus_planner.declared import declarations_file
from omnibus_planner.declared.model import DeclaredModel, DeclaredPath
from omnibus_planner.declared.planned_spec import (
    DeclaredNode,
    GpuType,
    PlannedModel,
    TailLatencyGoals,
    TypeLatencyGoals,
)

_FORM = '{"models": {"NAME": {"family": "...", "checkpoint": "..."}}}'
_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]*)`")
_NAMED_MODEL = re.compile(r"^model ([^:\s]+): ")
_AREAS: tuple[type[msgspec.Struct], ...] = (
    declarations_file.Declarations, DeclaredModel, DeclaredPath, DeploymentOption, ImageDefaults, PlannedModel,
    TailLatencyGoals, TypeLatencyGoals, GpuType, DeclaredNode,
)  # fmt: skip


def check_declarations(path: Path) -> list[dict[str, Any]]:
    """Return the models of the file at ``path``.

    They contain name, family, checkpoint, adapters, named engines, and each option's engine and tensor-parallel degree.
    Raises ``BadRequest`` with the line and, for an unknown field, the closest known name.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise BadRequest(f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadRequest(f"is not UTF-8 text: {error}") from error
    _check_syntax(text)
    try:
        declarations = declarations_file.read_declarations(str(path))
        declarations_file.build_static_plans(declarations.models)
        declarations_file.planned_models(declarations.models)
    except BadRequest as error:
        raise BadRequest(_explain(text, error.message.removeprefix(f"{path}: "))) from error
    return [_describe_model(name, model) for name, model in declarations.models.items()]


def _check_syntax(text: str) -> None:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        if not text.lstrip().startswith("{"):
            raise BadRequest(f"declarations must be JSON: {_FORM}") from error
        raise BadRequest(f"line {error.lineno}: {error.msg} (column {error.colno})") from error
    if not isinstance(document, dict) or "models" not in document:
        raise BadRequest(f"declarations must have models: {_FORM}")


def _explain(text: str, message: str) -> str:
    """Add its line, if known, and the closest field to ``message``."""
    unknown, model = _UNKNOWN_FIELD.search(message), _NAMED_MODEL.search(message)
    key = unknown[1] if unknown else model[1] if model else ""
    line = next((number for number, each in enumerate(text.splitlines(), 1) if f'"{key}"' in each), 0) if key else 0
    close = closest_name(key, _field_names()) if unknown else ""
    suggestion = f": did you mean `{close}`?" if close else ""
    return (f"line {line}: " if line else "") + message + suggestion


def _field_names() -> Iterator[str]:
    for area in _AREAS:
        yield from (field.encode_name for field in msgspec.structs.fields(area))


def _describe_model(name: str, model: DeclaredModel) -> dict[str, Any]:
    engines = sorted({option.engine for option in (model.options or {}).values() if option.engine})
    return {
        "name": name,
        "family": model.family,
        "checkpoint": model.checkpoint,
        "engines": engines,
        "adapters": model.adapters,
        "degrees": {name: [option.engine, _degree(option)] for name, option in (model.options or {}).items()},
    }


def _degree(option: DeploymentOption) -> int:
    """Return the GPUs over which the language model of ``option`` is split; 1 without one."""
    if LANGUAGE_COMPONENTS.isdisjoint(option.components):
        return 1
    engine = option.vllm or {}
    return int(engine.get("tensor_parallel", max(1, option.gpus // int(engine.get("pipeline_parallel", 1)))))


if __name__ == "__main__":
    sys.exit(run_module.report_answer(lambda: check_declarations(Path(sys.argv[1]))))
