"""The page of the chart's values, from ``values.yaml`` and the schema.

Comments become descriptions.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "omnibus"
HEAD = """# Values of the chart

What `helm install -f` may set, and what it is without that. A value that is not here, or not of its type, is refused by the
schema before anything is made. Settings of services (`OMNIBUS_<AREA>_<FIELD>`) go below `settings`: all are in
[settings.md](settings.md). How to use them: [kubernetes.md](kubernetes.md).

This page is made from `deploy/helm/omnibus/values.yaml` and its schema, by `python -m tests.pages`.
"""


class ChartValue(NamedTuple):
    """A value without nested values; ``line`` is that of the file, from 0."""

    path: tuple[str, ...]
    default: Any
    line: int


def make_page() -> str:
    text = (CHART / "values.yaml").read_text()
    rows: dict[str, list[str]] = {}
    used_lines = set[int]()
    for value in list_values(text):
        meaning = "" if value.line in used_lines else comment_of(text.splitlines(), value.line)
        used_lines.add(value.line)
        type_text = " or ".join(_list_types(value.path)) or "any"
        default = json.dumps(value.default, ensure_ascii=False)
        row = f"| `{'.'.join(value.path)}` | {type_text} | `{default}` | {meaning} |"
        rows.setdefault(value.path[0], []).append(row.replace("``", "` `"))
    top = [row for own in rows.values() if len(own) == 1 for row in own]
    sections = [
        _format_section("General", top),
        *(_format_section(name, own) for name, own in rows.items() if len(own) > 1),
    ]
    return "\n".join([HEAD, *sections])


def _format_section(title: str, rows: list[str]) -> str:
    return "\n".join([f"## {title}", "", "| value | type | default | meaning |", "|---|---|---|---|", *rows, ""])


def list_values(text: str) -> Iterator[ChartValue]:
    """Yield every value of the file in its order."""
    yield from _walk_node(yaml.compose(text, yaml.SafeLoader), ())


def _walk_node(node: yaml.Node, path: tuple[str, ...]) -> Iterator[ChartValue]:
    assert isinstance(node, yaml.MappingNode)
    for key, below in node.value:
        if isinstance(below, yaml.MappingNode) and below.value:
            yield from _walk_node(below, (*path, key.value))
        else:
            default = yaml.safe_load(yaml.serialize(below))
            yield ChartValue((*path, key.value), default, key.start_mark.line)


def comment_of(lines: list[str], line: int) -> str:
    """Return the comments above a value and on its line.

    Those above may precede the map that the value begins.
    """
    behind = lines[line].partition(" # ")[2].strip()
    above = line - 1
    while above >= 0 and lines[above].strip().endswith(":") and not lines[above].lstrip().startswith("#"):
        above -= 1  # the keys of the maps that begin here
    comments: list[str] = []
    while above >= 0 and lines[above].lstrip().startswith("#"):
        comments.insert(0, lines[above].strip().lstrip("# "))
        above -= 1
    text = " ".join([*comments, behind] if behind else comments)
    return text.strip().replace("|", "\\|").replace("<", "&lt;")


def _list_types(path: tuple[str, ...]) -> list[str]:
    schema: Any = json.loads((CHART / "values.schema.json").read_text())
    definitions, below = schema["$defs"], schema
    for name in path:
        below = _resolve_schema(
            below.get("properties", {}).get(name) or below.get("additionalProperties") or {}, definitions
        )
        if not isinstance(below, dict):
            return []
    if "enum" in below:
        return [f"`{json.dumps(each)}`" for each in below["enum"]]
    kind = below.get("type", [])
    return [kind] if isinstance(kind, str) else list(kind)


def _resolve_schema(schema: Any, definitions: dict[str, Any]) -> Any:
    while isinstance(schema, dict) and "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    return schema
