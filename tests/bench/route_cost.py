"""CPU of choosing an executor, and of a heartbeat, as the number of executors of a stage grows.

    python -m tests.bench.route_cost

    scale.route_us.10000_over_16     of a route through one stage, of 10,000 executors by that of 16
    scale.missing_us.10000_over_100  of ``ReadyExecutors.count_missing`` with 100 kinds, of 10,000 executors by that of 100

All in one process, without a bus: a result is the ratio of medians of rounds that take turns.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence

from omnibus.bus.messages import ExecutorStatus
from omnibus.cluster.presence import ExecutorKind, ReadyExecutors
from omnibus.graph import GraphNode
from omnibus.plan import DeploymentOption, ModelPlan, Path, Plan
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.router import Router
from tests.bench.cases import MISSING_US, ROUTE_US

_ROUNDS, _ROUTES, _COUNTS = 9, 1000, 100
_KINDS = 100
_NODES = [GraphNode("think", "thinker", {}, "")]
_PER_NODE = 8


def make_status(number: int, kinds: int = 1) -> ExecutorStatus:
    """Return the status of one of many executors, eight on each node."""
    option, node = f"L{number % kinds}", f"n{number // _PER_NODE}"
    return ExecutorStatus(
        f"m-{option}-{number}", "m", option, ("thinker",), ("think",), node, "ready", 32, inflight=number % 7, slots=16
    )


def make_router(executors: int) -> Router:
    """Return a router with ``executors`` of one stage."""
    router = Router("bench", ExecutorTable())
    options = {"L0": DeploymentOption(("thinker",), "llm")}
    types = {"thinker": (Path("L0", {"thinker": "L0"}, 1.0),)}
    model = ModelPlan("f", "", ("thinker",), {}, options, types, tasks={"thinker": "think"})
    router.plan = Plan(1, 0, 1.0, {"m": model})
    for number in range(executors):
        router.members.handle_status(make_status(number))
    return router


def _route_chat(executors: int) -> Callable[[], float]:
    router, statuses = make_router(executors), [make_status(number) for number in range(executors)]
    assignment = router.assign(_NODES)

    def route() -> None:
        chosen = router.route(assignment, router.issue_ticket(assignment.model, assignment.kind))
        member = router.members.get(chosen.executors[0])
        assert member is not None
        member.charge_work(1)
        member.discharge_work(1)

    def measure() -> float:
        for status in statuses:  # silent ones get no requests
            router.members.handle_status(status)
        return _time_calls(route, _ROUTES)

    return measure


def _count_missing(executors: int) -> Callable[[], float]:
    ready, statuses = ReadyExecutors(), [make_status(number, _KINDS) for number in range(executors)]
    wanted = {ExecutorKind("m", f"L{number}", ""): executors // _KINDS for number in range(_KINDS)}

    def measure() -> float:
        for status in statuses:
            ready.handle_status(status)
        return _time_calls(lambda: ready.count_missing(wanted), _COUNTS)

    return measure


def _time_calls(call: Callable[[], None], calls: int) -> float:
    """Return the CPU microseconds of one call."""
    begin = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - begin) / calls * 1e6


def _compare(name: str, make: Callable[[int], Callable[[], float]], sizes: Sequence[int]) -> float:
    measured = {size: make(size) for size in sizes}
    rounds = [{size: measure() for size, measure in measured.items()} for _ in range(_ROUNDS)]
    costs = {size: statistics.median(each[size] for each in rounds) for size in sizes}
    print(f"{name}: {', '.join(f'{size} {cost:.1f} us' for size, cost in costs.items())}", file=sys.stderr)
    return round(costs[sizes[-1]] / costs[sizes[0]], 3)


def measure_costs() -> dict[str, float]:
    """Return the ratios by name."""
    return {
        ROUTE_US: _compare(ROUTE_US, _route_chat, (16, 128, 1000, 10_000)),
        MISSING_US: _compare(MISSING_US, _count_missing, (100, 1000, 10_000)),
    }


if __name__ == "__main__":
    print(json.dumps(measure_costs()))
