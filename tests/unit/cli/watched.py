"""State for ``omnibus top`` (a plan, executors, load) and the rows it prints."""

import re
import time
from typing import Any

from omnibus.bus.messages import ExecutorStatus, LoadCounts, LoadEvent
from omnibus.cli.format import top
from omnibus.cluster.monitor.snapshot import SystemState
from omnibus.plan import DeploymentOption, ModelPlan, Path, Plan

TYPE = "vision+thinker"


class MonitorClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make_model(thinkers: int = 1, rate: float = 70.0) -> ModelPlan:
    options = {
        "E": DeploymentOption(("vision",), "encoder"),
        "L": DeploymentOption(("thinker",), "llm", thinkers, gpus=1),
    }
    apart = Path("E>L", {"vision": "E", "thinker": "L"}, rate)
    return ModelPlan("f", "/m", ("vision", "thinker"), {}, options, {TYPE: (apart,)})


def make_plan(epoch: int = 3, thinkers: int = 1, rate: float = 70.0, **more: Any) -> Plan:
    return Plan(epoch, 0, time.time() - 300, {"m": make_model(thinkers, rate)}, reason="load", **more)


def make_status(id: str, option: str = "L", busy: float = 0.0, done: int = 0, **more: Any) -> ExecutorStatus:
    component = "vision" if option == "E" else "thinker"
    fields = {"inflight": 0, "origin": make_model().option_origin(option), "state": "ready", **more}
    return ExecutorStatus(id, "m", option, (component,), (), "n", credits=8, busy=(busy,), done=(done,), **fields)


def make_event(gateway: str = "g", inflight: int = 0, **types: LoadCounts) -> LoadEvent:
    return LoadEvent(gateway, 3, 1.0, inflight, {"m": types} if types else {})


def split_rows(lines: Any) -> dict[str, list[str]]:
    """Return the cells of each row, by its name."""
    cell_rows = [re.split(r"  +", line.strip()) for line in lines if "  " in line]
    return {cells[0]: cells[1:] for cells in cell_rows}


def show_rows(state: SystemState, *away: str, width: int = 100) -> dict[str, list[str]]:
    return split_rows(top.top_lines(state, away, width))
