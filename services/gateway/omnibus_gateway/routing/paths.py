"""Paths and cells that a request may take: by its header, its nodes' pins and the shares of cells.

Routes without alternatives are cached.

The pin of a node is one of:

- ``apart``: its executor runs no other component (an encoder may share one with other encoders).
- ``together``: one executor runs all nodes of its part.
- ``path:NAME``: its part takes that path.
- empty: no restriction.

The planned path of a request's number determines its cell. If other cells have a path through the same options, the
request goes to the cell with the least work for its share. So equal cells act as one pool while all are alive, and no
cell queues while another is idle.

A route is valid until an executor joins, leaves or changes its state. Each lookup checks that none has fallen silent.
"""

import logging
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import NamedTuple

from omnibus.cells import CellShares, base_option, has_cells, path_cell
from omnibus.errors import BadRequest
from omnibus.plan import ModelPlan, Path, Plan
from omnibus_gateway.routing.assignment import MAX_CACHED_SHAPES, Assignment, ModelPart
from omnibus_gateway.routing.executors import ExecutorEntry, ExecutorTable
from omnibus_gateway.routing.replicas import Nearness

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


log = logging.getLogger(__name__)


class CellChooser:
    """Cells of the plan in force. ``models`` are the models that have cells."""

    def __init__(self, members: ExecutorTable) -> None:
        self._members = members
        self.models: Mapping[str, ModelPlan] = {}
        self._shares = CellShares({})
        self._same: dict[tuple[str, str, int], tuple[Path, ...]] = {}
        self._lost: set[tuple[str, str]] = set()

    def use_plan(self, plan: Plan | None) -> None:
        """Switch to the cells of ``plan``."""
        models = plan.models if plan is not None else {}
        self.models = {name: model for name, model in models.items() if has_cells(model)}
        self._same, self._lost = {}, set()

    def use_shares(self, shares: Mapping[str, float]) -> None:
        """Scale the planned share of each cell by ``shares``, keyed by ``model/cell``."""
        self._shares, self._same = CellShares(shares), {}

    def scale_paths(self, model: str, paths: tuple[Path, ...]) -> tuple[Path, ...]:
        """Return ``paths`` of ``model`` with their scaled rates."""
        model_plan = self.models.get(model)
        return paths if model_plan is None else self._shares.scale_paths(model, model_plan, paths)

    def choose_cell(self, model: str, planned_path: Path, paths: Sequence[Path]) -> Path:
        """Choose the cell with the least work for its rate; the planned one wins ties.

        The candidates are the ``paths`` through the options of ``planned_path``, one in each cell.
        """
        same = self._same_paths(model, planned_path, paths)
        if len(same) < 2:
            return planned_path
        best, least = planned_path, self._path_work(model, planned_path)
        for path in same if least > 0 else ():
            work = self._path_work(model, path)
            if work < least:
                best, least = path, work
        return best

    def note_fallback(self, model: str, planned_path: Path, actual_path: Path) -> None:
        """Log once that the cell of ``planned_path`` lost a stage to ``actual_path``."""
        lost_cell, other = path_cell(self.models[model], planned_path), path_cell(self.models[model], actual_path)
        if lost_cell != other and (model, lost_cell) not in self._lost:
            self._lost.add((model, lost_cell))
            log.warning("cell %s of %s has lost a stage: its requests go to %s and others", lost_cell, model, other)

    def _same_paths(self, model: str, planned_path: Path, paths: Sequence[Path]) -> tuple[Path, ...]:
        key = (model, planned_path.name, len(paths))
        same_paths = self._same.get(key)
        if same_paths is None:
            base_options = self._base_options(model, planned_path)
            same_paths = self._same[key] = tuple(
                path for path in paths if path.rate > 0 and self._base_options(model, path) == base_options
            )
        return same_paths

    def _base_options(self, model: str, path: Path) -> dict[str, str]:
        plan = self.models[model]
        return {part: base_option(plan, name) for part, name in path.options.items()}

    def _path_work(self, model: str, path: Path) -> float:
        """Return the work of the busiest option on ``path`` over its rate."""
        options = dict.fromkeys(path.options.values())
        return max(self._members.option_work(model, name) for name in options) / path.rate


class ExecutorRoute(NamedTuple):
    """A path with the executor and the tokens of each node.

    When several models run the graph, ``path`` is ``a=E>L,b=L`` and options are ``model/option``.
    """

    path: str
    options: tuple[str, ...]
    executors: tuple[str, ...]
    work: tuple[float, ...]


class _KnownRoute(NamedTuple):
    """A cached route with its graph and executors."""

    parts: tuple[ModelPart, ...]
    work: Sequence[int]
    version: int  # of the table of executors
    members: Sequence[ExecutorEntry]
    route: ExecutorRoute


class OnlyRoutes:
    """Cache of the last graph's route for each model and request type."""

    def __init__(self, members: ExecutorTable, nearness: Nearness | None) -> None:
        self._members = members
        self._nearness = nearness
        self._known: dict[tuple[str, str], _KnownRoute] = {}

    def clear(self) -> None:
        """Drop all routes, because another plan is in force."""
        self._known.clear()

    def find(self, assignment: Assignment, work: Sequence[int]) -> ExecutorRoute | None:
        """Return the cached route of ``assignment`` if none can be better."""
        cached_route = self._known.get((assignment.model, assignment.kind))
        if (
            cached_route is None
            or cached_route.parts is not assignment.parts
            or cached_route.version != self._members.version
            or cached_route.work != work
            or (self._nearness is not None and self._nearness.any_draining)
        ):
            return None
        now = monotonic()
        for member in cached_route.members:
            if not member.is_fit(now):
                return None
        return cached_route.route

    def keep(
        self, assignment: Assignment, work: Sequence[int], members: Sequence[ExecutorEntry], route: ExecutorRoute
    ) -> None:
        """Cache ``route`` through ``members``, the only executors of their options."""
        if len(self._known) >= MAX_CACHED_SHAPES:
            self._known.clear()
        key = assignment.model, assignment.kind
        self._known[key] = _KnownRoute(assignment.parts, work, self._members.version, members, route)
