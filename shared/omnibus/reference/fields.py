"""Fields of settings: their units, their descriptions, and their values in this environment.

Comments above the fields of a class, in the format of pages.
"""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from omnibus.environment import Settings, variable_name


def field_comments(owner: type) -> dict[str, str]:
    """Return the ``#:`` comment above each field of ``owner``. Fields of its base classes are included; the text is ""
    without a comment."""
    comments: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        # A generic with parameters is created at run time and derives from the one without.
        if base.__module__.split(".")[0] == "omnibus" and "[" not in base.__name__:
            comments |= _own_comments(base)
    return comments


def _own_comments(owner: type) -> dict[str, str]:
    source = inspect.getsource(owner)
    lines, comments = source.splitlines(), {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            end = begin = node.lineno - 1
            while lines[begin - 1].lstrip().startswith("#:"):
                begin -= 1
            comments[node.target.id] = " ".join(line.strip().removeprefix("#:").strip() for line in lines[begin:end])
    return comments


def to_markdown(text: str) -> str:
    """Convert a docstring or comment to Markdown for a table."""
    return text.replace("``", "`").replace("|", "\\|")


#: Units of numbers whose name does not contain it, by the name of the field.
UNITS = {
    **dict.fromkeys(("arena_mib", "cache_mib", "kv_mib", "prompt_cache_mib"), "MiB"),
    **dict.fromkeys(("video_frame", "video_pixels"), "pixels"),
    **dict.fromkeys(("tenant_share", "memory", "margin", "incoming"), "share"),
    **dict.fromkeys(("file_largest", "max_body", "bodies", "app_body", "max_payload", "inline"), "bytes"),
    **dict.fromkeys(("media_tokens", "step_tokens", "speculative_tokens", "context", "share"), "tokens"),
    **dict.fromkeys(("metrics_port", "port"), "port"),
    **dict.fromkeys(("near", "verify_every", "least", "admit", "admit_queue"), "requests"),
    **dict.fromkeys(("videos", "videos_open", "videos_kept"), "videos"),
    "app_workers": "workers",
    **dict.fromkeys(("responses", "responses_open"), "responses"), "realtime_sessions": "sessions",
    **dict.fromkeys(("max_inflight", "credits"), "invocations"),
    "batch_parallel": "lines", "body_rate": "bytes per second",
    "video_frames": "frames", "threads": "threads", "tensor_parallel": "GPUs", "pipeline_parallel": "groups",
    "head_lines": "lines", "batch": "rows", "adapter_rank": "rows", "adapter_slots": "adapters",
    "links": "connections", "history": "plans", "replicas": "servers", "nats_cores": "cores",
    "nice": "steps",
}  # fmt: skip
#: Parts of the names of fields whose values are secret.
_SECRET_WORDS = ("password", "secret", "token", "salt", "url")
_NAMED_UNIT = re.compile(r"_(seconds|bytes)$")


class Described(NamedTuple):
    """Fields that one comment describes."""

    fields: list[msgspec.structs.FieldInfo]
    comment: str


def described(area: type[Settings]) -> Iterator[Described]:
    """Yield the fields of ``area`` by comment. A field without a comment shares that of the field before it."""
    comments = field_comments(area)
    groups: list[Described] = []
    for field in msgspec.structs.fields(area):
        if comments[field.name] or not groups:
            groups.append(Described([field], comments[field.name]))
        else:
            groups[-1].fields.append(field)
    yield from groups


def unit_of(field: msgspec.structs.FieldInfo) -> str:
    """Return the unit of a number, or the kind of another value: ``text``, ``yes or no``."""
    if isinstance(field.default, bool):
        return "yes or no"
    if isinstance(field.default, str) or field.type is str:
        return "text"
    if field.name in UNITS:
        return UNITS[field.name]
    match = _NAMED_UNIT.search(field.name)
    if match:
        return match[1]
    if field.type in (float, float | None):
        return "seconds"
    raise LookupError(f"the unit of {field.name} is unknown: add it to UNITS of omnibus.reference.fields")


class Variable(NamedTuple):
    """Environment variable. ``value`` is None if it is not set, and ``(set)`` for a secret."""

    name: str
    default: Any
    unit: str
    meaning: str
    value: str | None


def area_variables(area: type[Settings], environ: Mapping[str, str]) -> Iterator[Variable]:
    """Yield the variables of ``area`` with their values in ``environ``. Secrets are hidden, since variables are shown
    and logged."""
    for each in described(area):
        for field in each.fields:
            name = variable_name(area, field.name)
            value = environ.get(name)
            if value and any(word in field.name for word in _SECRET_WORDS):
                value = "(set)"
            default = field.default if field.default is not msgspec.NODEFAULT else None
            yield Variable(name, default, unit_of(field), each.comment.replace("``", "`"), value)
