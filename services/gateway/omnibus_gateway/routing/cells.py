"""Choice of a request's cell, by the cells' shares and work.

The planned path of a request's number determines its cell. If other cells have a path through the same options, the
request goes to the cell with the least work for its share. So equal cells act as one pool while all are alive, and no
cell queues while another is idle.
"""

import logging
from collections.abc import Mapping, Sequence

from omnibus.cells import CellShares, base_option, has_cells, path_cell
from omnibus.plan import ModelPlan, Path, Plan
from omnibus_gateway.routing.executors import ExecutorTable

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
