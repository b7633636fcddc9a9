"""The page of all settings, from their definitions and comments: ``python -m tests.settings_page`` writes it."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from omnibus import settings
from omnibus.settings import Settings
from omnibus.up.fork_server import UpSettings

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
AREAS: list[type[Settings]] = [
    settings.ServiceSettings,
    settings.GatewaySettings,
    settings.PlannerSettings,
    settings.KubernetesSettings,
    settings.ExecutorSettings,
    settings.VllmSettings,
    settings.SidecarSettings,
    settings.BusSettings,
    settings.StoreSettings,
    UpSettings,
]
HEAD = """# Settings

Each service reads its settings from environment variables when it starts; a wrong value is an error that names the
variable. `deploy/compose/compose.yaml` sets them for compose, `values.yaml` of the chart for Kubernetes. Variables
that begin with `OTEL_` are those of OpenTelemetry. This page is made from the definitions in
`shared/omnibus/settings.py`, by `python -m tests.settings_page`.
"""


class Described(NamedTuple):
    """Fields that one comment describes."""

    fields: list[msgspec.structs.FieldInfo]
    comment: str


def page() -> str:
    return "\n".join([HEAD, *map(_section, AREAS)])


def described(area: type[Settings]) -> Iterator[Described]:
    """The fields of ``area``; those without a comment share that of the field before them."""
    comments = _comments(area)
    found: list[Described] = []
    for field in msgspec.structs.fields(area):
        if comments[field.name] or not found:
            found.append(Described([field], comments[field.name]))
        else:
            found[-1].fields.append(field)
    yield from found


def _comments(area: type[Settings]) -> dict[str, str]:
    """The comment above each field; empty without one."""
    source = inspect.getsource(area)
    lines, comments = source.splitlines(), {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            end = begin = node.lineno - 1
            while lines[begin - 1].lstrip().startswith("#:"):
                begin -= 1
            comments[node.target.id] = " ".join(line.strip().removeprefix("#:").strip() for line in lines[begin:end])
    return comments


def _section(area: type[Settings]) -> str:
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for each in described(area):
        names = "<br>".join(f"`OMNIBUS_{area.area}_{field.name.upper()}`" for field in each.fields)
        defaults = "<br>".join(_shown(field.default) for field in each.fields)
        rows.append(f"| {names} | {defaults} | {_prose(each.comment)} |")
    return "\n".join([f"## {area.area.title()}", "", _prose(inspect.getdoc(area) or ""), "", *rows, ""])


def _shown(default: Any) -> str:
    if default is None or default == "":
        return "empty"
    if isinstance(default, bool):
        return str(default).lower()
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def _prose(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
