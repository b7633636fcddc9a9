"""The page of all settings, from their definitions and comments."""

import inspect
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from omnibus import settings
from omnibus.executor.settings import ExecutorSettings, VllmSettings
from omnibus.settings import Settings
from omnibus.up.fork_server import UpSettings
from tests.pages.comments import field_comments, to_markdown

AREAS: list[type[Settings]] = [
    settings.ServiceSettings,
    settings.GatewaySettings,
    settings.PlannerSettings,
    settings.KubernetesSettings,
    ExecutorSettings,
    VllmSettings,
    settings.SidecarSettings,
    settings.BusSettings,
    settings.StoreSettings,
    UpSettings,
]
TITLES = {"VLLM": "vLLM", "UP": "omnibus up", "BUS": "Bus (NATS)", "STORE": "Store (Redis or Valkey)"}
HEAD = """# Settings

Each service reads its settings from environment variables when it starts; a wrong value is an error that names the
variable. `deploy/compose/compose.yaml` sets them for compose, `values.yaml` of the chart for Kubernetes. Variables
that begin with `OTEL_` are those of OpenTelemetry.

This page is made from the definitions in `shared/omnibus/settings.py` and `shared/omnibus/executor/settings.py`, by `python -m tests.pages`.
"""
#: Units of numbers whose name does not say it: a part of the name, and the unit.
UNITS = {
    "arena_mib": "MiB", "cache_mib": "MiB", "kv_mib": "MiB",
    "video_frame": "pixels", "video_pixels": "pixels", "video_frames": "frames",
    "tenant_share": "share", "memory": "share", "margin": "share",
    "body_rate": "bytes per second", "file_largest": "bytes", "max_body": "bytes", "bodies": "bytes", "app_body": "bytes",
    "max_payload": "bytes", "inline": "bytes", "media_tokens": "tokens", "step_tokens": "tokens", "context": "tokens", "share": "tokens",
    "threads": "threads", "tensor_parallel": "GPUs", "head_lines": "lines", "batch": "rows",
    "metrics_port": "port", "port": "port", "links": "connections", "near": "requests", "incoming": "share",
    "verify_every": "requests", "videos": "videos", "videos_open": "videos", "videos_kept": "videos", "history": "plans", "least": "requests",
    "replicas": "servers",
    "max_inflight": "invocations", "credits": "invocations", "admit": "requests", "admit_queue": "requests",
}  # fmt: skip
_NAMED_UNIT = re.compile(r"_(seconds|bytes)$")


class Described(NamedTuple):
    """Fields that one comment describes."""

    fields: list[msgspec.structs.FieldInfo]
    comment: str


def page() -> str:
    return "\n".join([HEAD, *map(_section, AREAS)])


def described(area: type[Settings]) -> Iterator[Described]:
    """The fields of ``area``; those without a comment share that of the field before them."""
    comments = field_comments(area)
    found: list[Described] = []
    for field in msgspec.structs.fields(area):
        if comments[field.name] or not found:
            found.append(Described([field], comments[field.name]))
        else:
            found[-1].fields.append(field)
    yield from found


def unit_of(field: msgspec.structs.FieldInfo) -> str:
    """Unit of a number, or the kind of another value: ``text``, ``yes or no``."""
    if isinstance(field.default, bool):
        return "yes or no"
    if isinstance(field.default, str) or field.type is str:
        return "text"
    if field.name in UNITS:
        return UNITS[field.name]
    named = _NAMED_UNIT.search(field.name)
    if named:
        return named[1]
    if field.type in (float, float | None):
        return "seconds"
    raise LookupError(f"UNITS of tests/pages/settings.py says no unit of {field.name}")


def _section(area: type[Settings]) -> str:
    rows = ["| variable | default | unit | meaning |", "|---|---|---|---|"]
    for each in described(area):
        names = "<br>".join(f"`OMNIBUS_{area.area}_{field.name.upper()}`" for field in each.fields)
        defaults = "<br>".join(_shown(field) for field in each.fields)
        units = "<br>".join(unit_of(field) for field in each.fields)
        rows.append(f"| {names} | {defaults} | {units} | {to_markdown(each.comment)} |")
    title = TITLES.get(area.area, area.area.title())
    return "\n".join([f"## {title}", "", to_markdown(inspect.getdoc(area) or ""), "", *rows, ""])


def _shown(field: msgspec.structs.FieldInfo) -> str:
    default: Any = field.default
    if default is None or default == "":
        return "empty"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, int) and unit_of(field) == "bytes" and default >= 1 << 20:
        return f"`{default}` ({_in_binary_units(default)})"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def _in_binary_units(count: int) -> str:
    return f"{count >> 30} GiB" if count % (1 << 30) == 0 else f"{count >> 20} MiB"
