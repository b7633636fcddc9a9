"""The page of all settings, from their definitions and comments."""

import inspect
from typing import Any

import msgspec

from omnibus.environment import Settings, variable_name
from omnibus.reference.comments import to_markdown
from omnibus.reference.fields import described, unit_of
from omnibus.reference.settings import AREAS, OTHER_VARIABLES

TITLES = {"VLLM": "vLLM", "UP": "omnibus up", "BUS": "Bus (NATS)", "STORE": "Store (Redis or Valkey)"}
HEAD = """# Settings

Each service reads its settings from environment variables when it starts; a wrong value is an error that names the
variable, and so is a name that begins as settings do and is none. `omnibus settings` prints them with the values of a
shell. `deploy/compose/compose.yaml` sets them for compose, `values.yaml` of the chart for Kubernetes. Variables
that begin with `OTEL_` are those of OpenTelemetry.

This page is made from the definitions in `shared/omnibus/settings.py` and `shared/omnibus/executor/settings.py`, by `python -m tests.pages`.
"""


def make_page() -> str:
    return "\n".join([HEAD, *map(_format_section, AREAS), *_other_section()])


def _other_section() -> list[str]:
    rows = [f"| `{name}` | {meaning} |" for name, meaning in OTHER_VARIABLES.items()]
    return ["## The omnibus command", "", "| variable | meaning |", "|---|---|", *rows, ""]


def _format_section(area: type[Settings]) -> str:
    rows = ["| variable | default | unit | meaning |", "|---|---|---|---|"]
    for each in described(area):
        names = "<br>".join(f"`{variable_name(area, field.name)}`" for field in each.fields)
        defaults = "<br>".join(_format_default(field) for field in each.fields)
        units = "<br>".join(unit_of(field) for field in each.fields)
        rows.append(f"| {names} | {defaults} | {units} | {to_markdown(each.comment)} |")
    title = TITLES.get(area.area, area.area.title())
    return "\n".join([f"## {title}", "", to_markdown(inspect.getdoc(area) or ""), "", *rows, ""])


def _format_default(field: msgspec.structs.FieldInfo) -> str:
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
