"""The page of all settings, from their definitions and comments."""

import inspect
from typing import Any

import msgspec

from omnibus.environment import Settings, variable_name
from omnibus.reference.fields import described, to_markdown, unit_of
from omnibus.reference.settings import AREAS, OTHER_VARIABLES

TITLES = {"VLLM": "vLLM", "UP": "omnibus up", "BUS": "Bus (NATS)", "STORE": "Store (Redis or Valkey)"}
HEAD = """# Settings

Each service reads its settings from environment variables at its start. A wrong value is an error that names the
variable, and so is an unknown name that starts like a setting. `omnibus settings` prints all settings with the values in
your shell. Set them in `deploy/compose/compose.yaml` for Compose, and in `values.yaml` for the chart. Variables that
start with `OTEL_` are those of OpenTelemetry.

`python -m tests.pages` writes this page from `shared/omnibus/settings.py` and `shared/omnibus/executor/settings.py`.
"""


def make_page() -> str:
    return "\n".join([HEAD, *map(_format_section, AREAS), *_other_section()])


def _other_section() -> list[str]:
    rows = [f"| `{name}` | {meaning} |" for name, meaning in OTHER_VARIABLES.items()]
    return ["## The omnibus command", "", "| variable | meaning |", "|---|---|", *rows, ""]


def _format_section(area: type[Settings]) -> str:
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for each in described(area):
        names = "<br>".join(f"`{variable_name(area, field.name)}`" for field in each.fields)
        defaults = "<br>".join(_format_default(field) for field in each.fields)
        rows.append(f"| {names} | {defaults} | {to_markdown(each.comment)} |")
    title = TITLES.get(area.area, area.area.title())
    return "\n".join([f"## {title}", "", to_markdown(inspect.getdoc(area) or ""), "", *rows, ""])


def _format_default(field: msgspec.structs.FieldInfo) -> str:
    """The default with its unit."""
    default: Any = field.default
    if default is None or default == "":
        return "empty"
    if isinstance(default, bool | str):
        return f"`{default}`".lower() if isinstance(default, bool) else f"`{default}`"
    unit = unit_of(field)
    if unit == "port":
        return f"`{default}`"
    if unit == "bytes" and default >= 1 << 20:
        return f"`{default}` ({_in_binary_units(default)})"
    return f"`{int(default) if default == int(default) else default}` {unit}"


def _in_binary_units(count: int) -> str:
    return f"{count >> 30} GiB" if count % (1 << 30) == 0 else f"{count >> 20} MiB"
