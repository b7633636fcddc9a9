"""Utilisation of each option at the expected rates, and the resulting latency."""

from collections.abc import Iterator

from omnibus_planner.optimize.joint import PlanningOutcome
from omnibus_planner.optimize.latency import NO_WAIT, LatencyCase, Wait, queue_wait
from omnibus_planner.optimize.transfers import Transfer, TransferLoads
from omnibus_planner.solve.solution import Flow


class OptionLoads:
    """Utilisation of options, waits for them, and latencies of paths.

    Paths go over options and over links between nodes.
    """

    def __init__(self, outcome: PlanningOutcome, transfers: TransferLoads) -> None:
        self._outcome = outcome
        self._transfers = transfers
        work = outcome.expected_work()
        passing: dict[str, float] = {}
        for flow in outcome.solution.flows:
            for option in flow.options:
                passing[option] = passing.get(option, 0.0) + outcome.expected_flow_rate(flow)
        replicas = outcome.solution.replicas
        self.busy = {option: work.get(option, 0.0) / count for option, count in replicas.items()}
        self._waits = {
            option: queue_wait(work.get(option, 0.0) / (passing.get(option) or 1.0), count, self.busy[option])
            for option, count in replicas.items()
        }

    def wait_seconds(self, option: str) -> float:
        """Return the mean seconds that requests wait for ``option``."""
        return self._waits[option].mean

    def flow_wait_seconds(self, flow: Flow) -> float:
        """Return the mean seconds that a request waits on this path.

        It waits for executors and for links.
        """
        links = sum(each.share * self._transfers.wait(each.nodes).mean for each in self._flow_transfers(flow))
        return links + sum(self._waits.get(option, NO_WAIT).mean for option in flow.options)

    def unloaded_seconds(self, flow: Flow) -> float:
        """Return the seconds of a request on an idle path: its stops and transfers in sequence."""
        moved = sum(each.share * self._transfers.unloaded_seconds(each) for each in self._flow_transfers(flow))
        return moved + sum(self._stop_seconds(flow))

    def flow_cases(self, flow: Flow) -> list[LatencyCase]:
        """Return the latencies of a path.

        The requests are divided by where they wait and by which tensors cross nodes. Of the seconds of a stop, those at
        full load vary with a coefficient of variation of 1.
        """
        alone = self._stop_seconds(flow)
        parts = [min(pair) for pair in zip(flow.seconds, alone, strict=True)]
        whole = sum(parts)
        first = LatencyCase(
            self._outcome.expected_flow_rate(flow), sum(alone) - whole, whole, sum(part**2 for part in parts)
        )
        cases = [first]
        for option in flow.options:
            cases = [each for case in cases for each in case.split_waiting(self._waits.get(option, NO_WAIT))]
        for hop in self._transfers.flow_transfers(self._outcome, flow):
            cases = [each for case in cases for each in self._split_crossing(case, hop)]
        return cases

    def _split_crossing(self, case: LatencyCase, hop: list[Transfer]) -> Iterator[LatencyCase]:
        """Yield the requests whose tensor crosses nodes, and the others.

        Those that cross take the mean seconds of all pairs.
        """
        part = sum(each.share for each in hop)
        if part <= 0:
            yield case
            return
        seconds = sum(each.share * self._transfers.unloaded_seconds(each) for each in hop) / part
        crossing, staying = case.split_part(min(1.0, part), seconds)
        waits = [(each.share / part, self._transfers.wait(each.nodes)) for each in hop]
        yield from crossing.split_waiting(_mean_wait(waits))
        yield staying

    def _flow_transfers(self, flow: Flow) -> Iterator[Transfer]:
        for hop in self._transfers.flow_transfers(self._outcome, flow):
            yield from hop

    def _stop_seconds(self, flow: Flow) -> list[float]:
        """Return the seconds of each stop when nothing else runs."""
        name, _, kind = flow.type.rpartition("/")
        ready, demand = self._outcome.ready[name], self._outcome.demands[name]
        found = []
        for option, role, seconds in zip(flow.options, flow.components, flow.seconds, strict=True):
            own = option if option in ready.lent else option.removeprefix(f"{name}/")
            found.append(ready.costs.unloaded_latency(kind, own, role, demand.quantities) or seconds)
        return found


def _mean_wait(waits: list[tuple[float, Wait]]) -> Wait:
    """Return the mean wait of requests whose parts wait differently."""
    part = sum(share * wait.part for share, wait in waits)
    if part <= 0:
        return NO_WAIT
    seconds, variance = (
        sum(share * wait.part * value for (share, wait), value in zip(waits, values, strict=True)) / part
        for values in ([wait.seconds for _, wait in waits], [wait.variance for _, wait in waits])
    )
    return Wait(part, seconds, variance)
