"""Cells of a model's plan: groups of executors that serve whole requests alone. Data, no I/O.

A model in cells has each of its options once per cell, such as ``E@c1`` and ``E@c2``, and a path stays within one cell.
So the cell of an executor is part of its plan, its id, its announcements and every route, and a request stays in one.
"""

from collections.abc import Mapping, Sequence

import msgspec

from omnibus.plan import DeploymentOption, ModelPlan, Path

#: Separates the name of an option from that of its cell.
CELL_MARK = "@"


def cell_name(number: int) -> str:
    """Return the name of a model's ``number``-th cell, counted from 0."""
    return f"c{number + 1}"


def join_cells(cells: Sequence[ModelPlan]) -> ModelPlan:
    """Return one plan of parallel ``cells``, with separate executors and paths.

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
    """Return ``model`` as one pool: all executors of each option, and the summed rates of paths."""
    if not has_cells(model):
        return model
    options: dict[str, DeploymentOption] = {}
    for name, option in model.options.items():
        base = base_option(model, name)
        pool = options.get(base)
        more = pool.replicas if pool is not None else 0
        options[base] = msgspec.structs.replace(option, cell=msgspec.UNSET, replicas=option.replicas + more)
    types = {kind: _merged_paths(model, paths) for kind, paths in model.types.items()}
    return msgspec.structs.replace(model, options=options, types=types)


def has_cells(model: ModelPlan) -> bool:
    """True if any executor of ``model`` belongs to a cell."""
    return any(option.cell for option in model.options.values())


def base_option(model: ModelPlan, name: str) -> str:
    """Return the name of an option without its cell."""
    option = model.options.get(name)
    cell = option.cell if option is not None else msgspec.UNSET
    return name.removesuffix(f"{CELL_MARK}{cell}") if cell else name


def path_cell(model: ModelPlan, path: Path) -> str:
    """Return the cell of ``path``, or "" without one."""
    for name in path.options.values():
        option = model.options.get(name)
        if option is not None and option.cell:
            return option.cell
    return ""


def cell_shares(model: ModelPlan) -> dict[str, float]:
    """Return each cell's share of requests over all request types.

    It is empty for a model without cells.
    """
    rates = {option.cell: 0.0 for option in model.options.values() if option.cell}
    for paths in model.types.values():
        for path in paths:
            cell = path_cell(model, path)
            if cell and not path.is_candidate:
                rates[cell] += path.rate
    total = sum(rates.values())
    return {cell: rate / total if total else 0.0 for cell, rate in sorted(rates.items(), key=_cell_order)}


def _cell_order(entry: tuple[str, float]) -> tuple[int, str]:
    return len(entry[0]), entry[0]


def _renamed(path: Path, suffix: str) -> Path:
    options = {part: f"{name}{suffix}" for part, name in path.options.items()}
    return Path(">".join(dict.fromkeys(options.values())), options, path.rate)


def _merged_paths(model: ModelPlan, paths: Sequence[Path]) -> tuple[Path, ...]:
    rates: dict[tuple[tuple[str, str], ...], float] = {}
    for path in paths:
        runs = tuple((part, base_option(model, name)) for part, name in path.options.items())
        rates[runs] = rates.get(runs, 0.0) + path.rate
    return tuple(
        Path(">".join(dict.fromkeys(name for _, name in runs)), dict(runs), rate) for runs, rate in rates.items()
    )


class CellShares:
    """Parts of their planned shares that an operator assigns to cells: 1 is the plan's, 0 none.

    ``shares`` are by ``model/cell``. Other cells get their planned share.
    """

    def __init__(self, shares: Mapping[str, float]) -> None:
        self._shares = {name: share for name, share in shares.items() if share != 1.0}

    def scale_paths(self, name: str, model: ModelPlan, paths: tuple[Path, ...]) -> tuple[Path, ...]:
        """Return ``paths`` of model ``name`` with scaled rates.

        If all rates were 0, the paths stay as planned, so that draining its cells does not reject a request type.
        """
        if not self._shares:
            return paths
        scaled_paths = tuple(
            msgspec.structs.replace(path, rate=path.rate * self._shares.get(f"{name}/{path_cell(model, path)}", 1.0))
            for path in paths
        )
        return scaled_paths if any(path.rate > 0 for path in scaled_paths) else paths
