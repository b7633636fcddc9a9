"""Extensions that other distributions add to a running system, by entry points.

| group              | the entry point's name | what it points to                                          |
|--------------------|------------------------|------------------------------------------------------------|
| `omnibus.families` | a model family         | a dict with the fields of ``PluginFamily``                 |
| `omnibus.apps`     | an app                 | its module, or an attribute that is the module or its name |

Gateways and planners import the entry point of a family too, so its module must be light. Name the engine as
``module:function``, and let that module import torch. Entry points are looked up once.
"""

from collections.abc import Collection
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

import msgspec

from omnibus.errors import BadRequest
from omnibus.families.templates import VideoLimits

FAMILIES, APPS = "omnibus.families", "omnibus.apps"

#: Former names of engines, which stored plans and declarations may still contain.
_RENAMED_ENGINES = {
    "omnibus.executor.own:engine": "omnibus.executor.python_task:engine",
    "services.engines:sim": "omnibus_engines:sim",
    "services.engines:transformers": "omnibus_engines:transformers",
    "services.engines:vllm": "omnibus_engines:vllm",
}

_families: dict[str, dict[str, Any]] = {}


class PluginFamily(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model family, in the form of ``omnibus.families.catalog``: defaults of declared models.

    ``tasks`` maps each component to the kind of its unit task. ``composite`` is the ``module:callable`` that returns
    the chat task of a model from its name and plan. ``engine`` is the ``module:function`` that returns the runner of a
    component. Both are empty for the usual one. ``video_limits`` are the limits of its models' videos, or None if they
    are unknown in advance. ``audio_window_seconds``: see ``omnibus.families.templates.FamilyDeclaration``.
    """

    components: tuple[str, ...]
    tasks: dict[str, str]
    encoders: dict[str, str] = {}
    voices: tuple[str, ...] = ()
    options: dict[str, dict[str, Any]] = {}
    paths: tuple[dict[str, Any], ...] = ()
    composite: str = ""
    engine: str = ""
    video_limits: VideoLimits | None = None
    audio_window_seconds: float = 0.0


def family_names() -> tuple[str, ...]:
    """Return the names of the families that plugins bring."""
    return _entry_point_names(FAMILIES)


def find_family(name: str) -> dict[str, Any] | None:
    """Return the family ``name`` with all fields: None if no plugin brings it.

    Raises ``BadRequest`` with the plugin's error.
    """
    if name not in _families:
        point = _find_entry_point(FAMILIES, name)
        if point is None:
            return None
        _families[name] = _load_family(point)
    return _families[name]


def _load_family(point: EntryPoint) -> dict[str, Any]:
    try:
        family = msgspec.convert(_load_entry_point(point), PluginFamily)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{_describe_entry_point(point)} is not a family: {error}") from error
    _check_family(point, family)
    return msgspec.structs.asdict(family)


def app_names() -> tuple[str, ...]:
    """Return the names of the apps that plugins bring."""
    return _entry_point_names(APPS)


def find_app_module(name: str) -> str:
    """Return the dotted name of the app ``name``'s module.

    The module is not imported if the entry point names it. Raises ``BadRequest`` for an unknown app.
    """
    point = _find_entry_point(APPS, name)
    if point is None:
        raise BadRequest(f"no plugin brings the app {name!r}; there is {join_names(app_names())}")
    if not point.attr:
        return point.module
    plugin = _load_entry_point(point)
    if isinstance(plugin, ModuleType):
        return plugin.__name__
    if isinstance(plugin, str) and plugin:
        return plugin
    raise BadRequest(
        f"{_describe_entry_point(point)} is not an app: it must be a module or its name, not {type(plugin).__name__}"
    )


def current_engine(path: str) -> str:
    """Return the current name of an engine that ``path`` may name as an earlier release did."""
    return _RENAMED_ENGINES.get(path, path)


def import_object(path: str, origin: str = "a plugin") -> Any:
    """Return the object at ``module:name``. Raises ``BadRequest``, with ``origin`` as the source."""
    module, _, name = current_engine(path).partition(":")
    if not module or not name:
        raise BadRequest(f"{origin}={path!r} must name module:function")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise BadRequest(f"{origin}={path!r} must name module:function: {error}") from error


def _entry_point_names(group: str) -> tuple[str, ...]:
    return tuple(sorted({point.name for point in entry_points(group=group)}))


def _find_entry_point(group: str, name: str) -> EntryPoint | None:
    """Return the one entry point of ``group`` with ``name``, or None."""
    points = {(point.value, _distribution_name(point)): point for point in entry_points(group=group, name=name)}
    if len(points) > 1:
        distributions = " and ".join(sorted(dist for _, dist in points))
        raise BadRequest(f"{name!r} of {group} is brought by {distributions}: uninstall all but one")
    return next(iter(points.values()), None)


def _load_entry_point(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:  # any error of a plugin's module is that plugin's fault
        raise BadRequest(f"{_describe_entry_point(point)} cannot be loaded: {type(error).__name__}: {error}") from error


def _check_family(point: EntryPoint, family: PluginFamily) -> None:
    strange = {*family.encoders.values(), *family.tasks} - {*family.components}
    if not family.components:
        raise BadRequest(f"{_describe_entry_point(point)} has no component")
    if strange:
        raise BadRequest(f"{_describe_entry_point(point)} names unknown components {sorted(strange)}")
    if missing := {*family.components} - {*family.tasks}:
        raise BadRequest(
            f"{_describe_entry_point(point)} names no unit task for {sorted(missing)}: add them to 'tasks'"
        )
    for field in ("composite", "engine"):
        path = getattr(family, field)
        module, _, name = path.partition(":")
        if path and not (module and name):
            raise BadRequest(f"{_describe_entry_point(point)} has {field} {path!r}: it must name module:function")


def _describe_entry_point(point: EntryPoint) -> str:
    return f"{point.name!r} of {point.group} ({_distribution_name(point)}: {point.value})"


def _distribution_name(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown distribution"


def join_names(names: Collection[str]) -> str:
    """Return ``names`` as a list for a message."""
    return ", ".join(sorted(names)) or "none"
