"""Typed values from environment variables, grouped in areas of settings."""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin

import msgspec

from omnibus.errors import BadRequest
from omnibus.suggestions import closest_name

_PREFIX = "OMNIBUS_"
#: Variables with the prefix of settings that files of ``deploy`` pass to other programs or copy into a setting.
FOREIGN_VARIABLES = frozenset({"OMNIBUS_SERVICE", "OMNIBUS_STORE_PASSWORD", "OMNIBUS_PORT", "OMNIBUS_GPU"})
#: Variables that Kubernetes derives from names of services, in pods that do not disable service links.
_SERVICE_LINK = re.compile(r"_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP)(_\w+)?)$")
#: Likeness, at most 1, from which a name counts as misspelt: all names begin alike.
_SIMILAR = 0.8
#: Most settings that a message suggests.
_MAX_SUGGESTIONS = 3
_KIND_NAMES = {bool: "`true` or `false`", int: "a whole number", float: "a number", str: "text"}


class Settings(msgspec.Struct, frozen=True):
    """Base of all areas; ``area`` is the middle part of the variable names."""

    area: ClassVar[str] = ""


S = TypeVar("S", bound=Settings)


def read_settings(kind: type[S], environ: Mapping[str, str] | None = None) -> S:
    """Read one area from the environment.

    Raises ``BadRequest`` with the variable and its value if the value is invalid. It also rejects unknown variables of
    the area: with a misspelt name, the default would stay in force.
    """
    environ = os.environ if environ is None else environ
    fields = {variable_name(kind, field.name): field for field in msgspec.structs.fields(kind)}
    prefix = f"{_PREFIX}{kind.area}_"
    for name in environ:
        if name.startswith(prefix) and name not in fields and not is_foreign(name):
            raise BadRequest(describe_unknown(name, fields))
    return kind(**{f.name: _parse_value(name, environ[name], f.type) for name, f in fields.items() if name in environ})


def variable_name(kind: type[Settings], field: str) -> str:
    """Return the environment variable that ``field`` of an area is read from."""
    return f"{_PREFIX}{kind.area}_{field.upper()}"


def is_foreign(name: str) -> bool:
    """Return whether another program, such as Kubernetes, set ``name``, despite its prefix."""
    return name in FOREIGN_VARIABLES or _SERVICE_LINK.search(name) is not None


def describe_unknown(name: str, names: Iterable[str]) -> str:
    """Return a message on the unknown ``name``, with the closest of ``names``."""
    close = _similar_settings(name, list(names))
    hint = f"did you mean {' or '.join(close)}?" if close else "`omnibus settings` lists all of them"
    return f"{name} is not a setting: {hint}"


def _similar_settings(name: str, names: list[str]) -> list[str]:
    """Return settings like ``name`` with another unit or area, or the closest."""
    shorter = [each for each in names if name.startswith(f"{each}_")]
    longer = [each for each in names if each.endswith(f"_{name.removeprefix(_PREFIX)}")]
    closest = closest_name(name, names, _SIMILAR)
    return (shorter or longer)[:_MAX_SUGGESTIONS] or [closest] * bool(closest)


def _parse_value(name: str, text: str, kind: Any) -> Any:
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError:
        raise BadRequest(f"{name}={text!r}: {_expected_value(kind)} is expected") from None


def _expected_value(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(f"`{each}`" for each in get_args(kind))
    kinds = get_args(kind) or (kind,)
    return " or ".join(_KIND_NAMES[each] for each in kinds if each in _KIND_NAMES) or f"a value of {kind}"


def count_processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
