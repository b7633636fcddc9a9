"""JSON of pages, read by the code that reads it from files or writes it in answers."""

import json
from pathlib import Path
from typing import Any

import msgspec

from omnibus.executor.sim.profile import decode_profile
from omnibus.plan import DeploymentOption
from omnibus.pricing import RequestUsage
from omnibus.profiling.app_workload import read_app_workload
from omnibus.profiling.measured_model import Subject
from omnibus.profiling.workload import read_workload
from omnibus_gateway.pricing.quotes import Quote
from omnibus_planner.declared.declarations_file import read_declarations
from omnibus_planner.declared.model import DeclaredModel
from omnibus_planner.declared.planned_spec import TailLatencyGoals

#: The model of a workload.
_SUBJECT = Subject("x", "qwen2_5_vl", "", ("vision", "thinker"), {"image": "vision"}, {}, (), {}, {}, {})


def read_data(text: str, directory: Path) -> None:
    """Read ``text`` as what its keys make it: a file in ``directory``, an entry of a declaration, or an answer.

    Raises the error of the reader, and ``ValueError`` for unknown keys.
    """
    document = json.loads(text if text.lstrip().startswith("{") else f"{{{text}}}")
    file = directory / "block.json"
    if document.keys() & {"models", "nodes"}:
        file.write_text(json.dumps({"models": {}, **document}))
        read_declarations(str(file))
    elif "requests" in document:
        file.write_text(text)
        apps = [request["app"] for request in document["requests"] if "app" in request]
        if apps:
            read_app_workload(file, dict.fromkeys(apps, ""))
        else:
            read_workload(file, _SUBJECT)
    elif "default" in document:
        decode_profile(text.encode())
    elif "usage" in document:
        _require_fields(document["usage"]["omnibus"], RequestUsage)
    elif document.get("object") == "quote":
        _require_fields(document, Quote)
    elif document.keys() <= set(TailLatencyGoals.__struct_fields__):
        _require_fields(document, TailLatencyGoals)
    else:
        for entry in document.values():
            _require_fields(entry, DeclaredModel if "family" in entry else DeploymentOption)


def _require_fields(document: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    """Raise an error unless ``kind`` has every field of ``document``, with its type."""
    read = msgspec.to_builtins(msgspec.convert(document, kind))
    _require_keys(document, read)


def _require_keys(document: Any, read: Any) -> None:
    if isinstance(document, dict):
        if unknown := document.keys() - read.keys():
            raise ValueError(f"unknown fields: {', '.join(sorted(unknown))}")
        for name, value in document.items():
            _require_keys(value, read[name])
    elif isinstance(document, list):
        for value, read_value in zip(document, read, strict=True):
            _require_keys(value, read_value)
