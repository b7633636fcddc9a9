"""Cells of a model's plan: groups of executors that serve whole requests by themselves. Data, no I/O.

A model in cells has each of its options once per cell, such as ``E@c1`` and ``E@c2``, and no path goes through two
cells. So the cell of an executor is in its plan, its id, what it announces and every route, and a request stays in one.
"""

from collections.abc import Mapping, Sequence

import msgspec

from omnibus.plan import DeploymentOption, ModelPlan, Path

#: Between the name of an option and that of its cell.
CELL_MARK = "@"


def cell_name(number: int) -> str:
    """The name of a model's ``number``-th cell, which counts from 0."""
    return f"c{number + 1}"


def join_cells(cells: Sequence[ModelPlan]) -> ModelPlan:
    """One plan in which ``cells`` run beside each other, each with its own executors and paths.

    All are plans of one model, at least one, none of which borrows or lends executors.
    """
    options, types = {}, dict[str, tuple[Path, ...]]()
    for number, cell in enumerate(cells):
        own = cell_name(number)
        for name, option in cell.options.items():
            options[f"{name}{CELL_MARK}{own}"] = msgspec.structs.replace(option, cell=own)
        for kind, paths in cell.types.items():
            types[kind] = (*types.get(kind, ()), *[_renamed(path, f"{CELL_MARK}{own}") for path in paths])
    return msgspec.structs.replace(cells[0], options=options, types=types)


def merge_cells(model: ModelPlan) -> ModelPlan:
    """``model`` as one pool of executors: the same number of each option, and paths with the rates of all cells."""
    if not has_cells(model):
        return model
    options: dict[str, DeploymentOption] = {}
    for name, option in model.options.items():
        base = base_option(model, name)
        known = options.get(base)
        more = known.replicas if known is not None else 0
        options[base] = msgspec.structs.replace(option, cell=msgspec.UNSET, replicas=option.replicas + more)
    types = {kind: _merged_paths(model, paths) for kind, paths in model.types.items()}
    return msgspec.structs.replace(model, options=options, types=types)


def has_cells(model: ModelPlan) -> bool:
    """True if any executor of ``model`` belongs to a cell."""
    return any(option.cell for option in model.options.values())


def base_option(model: ModelPlan, name: str) -> str:
    """The name of an option without that of its cell."""
    option = model.options.get(name)
    cell = option.cell if option is not None else msgspec.UNSET
    return name.removesuffix(f"{CELL_MARK}{cell}") if cell else name


def path_cell(model: ModelPlan, path: Path) -> str:
    """The cell that ``path`` lies in; empty where it lies in none."""
    for name in path.options.values():
        option = model.options.get(name)
        if option is not None and option.cell:
            return option.cell
    return ""


def cell_shares(model: ModelPlan) -> dict[str, float]:
    """The share of requests that the plan gives each cell, over all request types; none for a model without cells."""
    found = {option.cell: 0.0 for option in model.options.values() if option.cell}
    for paths in model.types.values():
        for path in paths:
            cell = path_cell(model, path)
            if cell and not path.is_candidate:
                found[cell] += path.rate
    total = sum(found.values())
    return {cell: rate / total if total else 0.0 for cell, rate in sorted(found.items(), key=_cell_order)}


def _cell_order(entry: tuple[str, float]) -> tuple[int, str]:
    return len(entry[0]), entry[0]


def _renamed(path: Path, suffix: str) -> Path:
    options = {part: f"{name}{suffix}" for part, name in path.options.items()}
    return Path(">".join(dict.fromkeys(options.values())), options, path.rate)


def _merged_paths(model: ModelPlan, paths: Sequence[Path]) -> tuple[Path, ...]:
    merged: dict[tuple[tuple[str, str], ...], float] = {}
    for path in paths:
        runs = tuple((part, base_option(model, name)) for part, name in path.options.items())
        merged[runs] = merged.get(runs, 0.0) + path.rate
    return tuple(
        Path(">".join(dict.fromkeys(name for _, name in runs)), dict(runs), rate) for runs, rate in merged.items()
    )


class CellShares:
    """Parts that cells get of their planned shares, as an operator says them: 1 as planned, 0 nothing.

    ``shares`` are by ``model/cell``; a cell that is not in it gets what is planned.
    """

    def __init__(self, shares: Mapping[str, float]) -> None:
        self._shares = {name: share for name, share in shares.items() if share != 1.0}

    def scale_paths(self, name: str, model: ModelPlan, paths: tuple[Path, ...]) -> tuple[Path, ...]:
        """``paths`` of model ``name`` with the rates that they get. Where nothing would be left, all are as planned:
        a request type is not refused because its cells are drained."""
        if not self._shares:
            return paths
        scaled = tuple(
            msgspec.structs.replace(path, rate=path.rate * self._shares.get(f"{name}/{path_cell(model, path)}", 1.0))
            for path in paths
        )
        return scaled if any(path.rate > 0 for path in scaled) else paths
