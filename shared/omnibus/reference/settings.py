"""All settings: their areas, units, and what is said of them where they are defined."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from omnibus import settings
from omnibus.environment import Settings, describe_unknown, is_foreign, read_settings, variable_name
from omnibus.errors import BadRequest
from omnibus.executor.settings import ExecutorSettings, VllmSettings
from omnibus.reference.comments import field_comments
from omnibus.settings import UpSettings

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
#: Variables that are read outside of an area, and what each is.
OTHER_VARIABLES = {
    "OMNIBUS_RUN": "Name of the run of `omnibus up` that commands talk to, as `--run`; see `omnibus ps`.",
    "OMNIBUS_CACHE": "Directory of checkpoints that are built here; empty: `~/.cache/omnibus`.",
}
#: Units of numbers whose name does not say it: a part of the name, and the unit.
UNITS = {
    **dict.fromkeys(("arena_mib", "cache_mib", "kv_mib"), "MiB"),
    **dict.fromkeys(("video_frame", "video_pixels"), "pixels"),
    **dict.fromkeys(("tenant_share", "memory", "margin", "incoming"), "share"),
    **dict.fromkeys(("file_largest", "max_body", "bodies", "app_body", "max_payload", "inline"), "bytes"),
    **dict.fromkeys(("media_tokens", "step_tokens", "context", "share"), "tokens"),
    **dict.fromkeys(("metrics_port", "port"), "port"),
    **dict.fromkeys(("near", "verify_every", "least", "admit", "admit_queue"), "requests"),
    **dict.fromkeys(("videos", "videos_open", "videos_kept"), "videos"),
    "responses": "responses", "realtime_sessions": "sessions",
    **dict.fromkeys(("max_inflight", "credits"), "invocations"),
    "batch_parallel": "lines", "body_rate": "bytes per second",
    "video_frames": "frames", "threads": "threads", "tensor_parallel": "GPUs",
    "head_lines": "lines", "batch": "rows", "links": "connections", "history": "plans", "replicas": "servers",
}  # fmt: skip
_NAMED_UNIT = re.compile(r"_(seconds|bytes)$")


class Described(NamedTuple):
    """Fields that one comment describes."""

    fields: list[msgspec.structs.FieldInfo]
    comment: str


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
    raise LookupError(f"UNITS of omnibus.reference.settings says no unit of {field.name}")


def all_variables() -> list[str]:
    """Return the environment variables of all areas."""
    return [variable_name(area, field.name) for area in AREAS for field in msgspec.structs.fields(area)]


def check_environment(environ: Mapping[str, str]) -> None:
    """Raise ``BadRequest`` for a variable that begins as settings do and is none, or whose value is wrong."""
    known = [*all_variables(), *OTHER_VARIABLES]
    for name in environ:
        if name.startswith("OMNIBUS_") and name not in known and not _is_free(name):
            raise BadRequest(describe_unknown(name, known))
    for area in AREAS:
        read_settings(area, environ)


def _is_free(name: str) -> bool:
    """Return whether ``name`` is for others to choose: passwords of users of NATS, tests, other programs."""
    return is_foreign(name) or name.startswith(("OMNIBUS_NATS_", "OMNIBUS_TEST_"))
