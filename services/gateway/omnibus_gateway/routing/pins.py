"""Paths that the client's header or its nodes' pins allow.

The pin of a node is one of:

- ``apart``: its executor runs no other component (an encoder may share one with other encoders).
- ``together``: one executor runs all nodes of its part.
- ``path:NAME``: its part takes that path.
- empty: no restriction.
"""

from collections.abc import Sequence

from omnibus.errors import BadRequest
from omnibus.plan import Path
from omnibus_gateway.routing.assignment import ModelPart

APART, TOGETHER, PATH = "apart", "together", "path:"


def find_named_paths(paths: Sequence[Path], part: ModelPart, pinned_path: str, several: bool) -> list[Path]:
    """Return the paths that the client named: ``E>L``, or ``model=E>L,other=L`` for several models.

    A model without a name here may take any path. An option of another model, ``other/E``, may be named without that
    model, as it was before both models shared the encoder. Raises ``BadRequest`` for an unknown path.
    """
    if not several:
        full_matches = [path for path in paths if path.name == pinned_path]
        matches = full_matches or [path for path in paths if _own_name(path) == pinned_path]
        return matches or _raise_no_path(f"no path {pinned_path[:80]!r} for {part.kind}", paths, "x-omnibus-path")
    model_pins = [name for name in pinned_path.split(",") if name.startswith(f"{part.model}=")]
    if not model_pins:
        return list(paths)
    full_matches = [path for path in paths if f"{part.model}={path.name}" in model_pins]
    matches = full_matches or [path for path in paths if f"{part.model}={_own_name(path)}" in model_pins]
    return matches or _raise_no_path(
        f"no path {model_pins[0][:80]!r} for {part.kind}", paths, "x-omnibus-path", f"{part.model}="
    )


def _own_name(path: Path) -> str:
    """Return the name of ``path`` without those of other models."""
    return ">".join(option.rpartition("/")[2] for option in path.name.split(">"))


def check_names(pinned_path: str, parts: Sequence[ModelPart]) -> None:
    """Raise ``BadRequest`` if ``pinned_path`` names a model outside the request."""
    for name in pinned_path.split(","):
        if not any(name.startswith(f"{part.model}=") for part in parts):
            models = ", ".join(part.model for part in parts)
            raise BadRequest(
                f"{name[:80]!r} names no path of a model of this request: write model=path for some of {models}",
                param="x-omnibus-path",
            )


def filter_by_pins(paths: Sequence[Path], part: ModelPart, pins: Sequence[str], encoders: frozenset[str]) -> list[Path]:
    """Return the paths that satisfy the pins of all nodes of ``part``. Raises ``BadRequest`` if none does."""
    for node, component in zip(part.nodes, part.components, strict=True):
        pin = pins[node]
        if not pin:
            continue
        if pin not in (APART, TOGETHER) and not pin.startswith(PATH):
            raise BadRequest(f"unknown pin {pin[:80]!r} of {component}: it must be {APART}, {TOGETHER} or {PATH}NAME")
        matches = [path for path in paths if _satisfies_pin(path, part, component, pin, encoders)]
        paths = matches or _raise_no_path(f"no path for {part.kind} has {component} {pin[:80]!r}", paths)
    return list(paths)


def _satisfies_pin(path: Path, part: ModelPart, component: str, pin: str, encoders: frozenset[str]) -> bool:
    if pin.startswith(PATH):
        return pin.removeprefix(PATH) in (path.name, _own_name(path))
    own_option = path.options[component]
    if pin == TOGETHER:
        return all(path.options[other] == own_option for other in part.used)
    other_components = part.used - {component} - (encoders if component in encoders else frozenset())
    return all(path.options[other] != own_option for other in other_components)


def _raise_no_path(fault: str, paths: Sequence[Path], param: str = "", prefix: str = "") -> list[Path]:
    names = ", ".join(prefix + path.name for path in paths)
    raise BadRequest(f"{fault}; choose one of {names}", param=param)
