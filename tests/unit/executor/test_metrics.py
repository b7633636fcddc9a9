"""Prometheus metrics of an executor's runners and of transferred tensors."""

from typing import Any

import numpy as np

from omnibus.executor import status as metrics
from omnibus.executor.runner import Job
from omnibus.graph import REF
from omnibus.metrics import MAX_EDGES, REGISTRY, TRANSFER
from tests.unit.executor.arithmetic import Place, make_call, make_invocation
from tests.unit.sidecar.node import wait_until


class StatsRunner:
    """A runner that only reports ``stats``."""

    def __init__(self, **stats: Any) -> None:
        self._stats = stats

    def stats(self) -> dict[str, Any]:
        return self._stats


def read_sample(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"omnibus_{name}", labels)


def test_runners_are_asked_for_what_they_count():
    runners = {
        "llm": StatsRunner(waiting=3, slots=16, used=2, tokens=40, batches={"1": 2, "6": 3}),
        "own": StatsRunner(task="x"),
    }
    metrics.watch_runners(runners)  # type: ignore[arg-type]

    assert read_sample("engine_waiting", component="llm") == 3
    assert read_sample("engine_slots_used", component="llm") == 2
    assert read_sample("engine_tokens_total", component="llm") == 40
    assert read_sample("engine_waiting", component="own") is None
    assert read_sample("batch_size_bucket", component="llm", le="4.0") == 2
    assert read_sample("batch_size_sum", component="llm") == 20
    assert read_sample("batch_size_count", component="own") is None


def test_what_a_runner_says_of_another_kind_is_left_out():
    metrics.watch_runners({"llm": StatsRunner(waiting="many")})  # type: ignore[dict-item]

    assert read_sample("engine_waiting", component="llm") is None


async def put_array(job: Job) -> None:
    await job.put("array", {}, np.zeros(1000, np.uint8))


async def take_input(job: Job) -> None:
    await job.value("x")
    await job.put("n", {"n": 1})


async def test_tensors_are_counted_by_who_sends_and_who_reads(here: Place):
    await here.executor("a", {"giving": put_array})
    await here.executor("b", {"taking": take_input})
    edge = {"source": "giving", "target": "taking"}

    here.office.send(
        make_invocation([make_call("giving"), make_call("taking", x={REF: [0, "array"]})], ["a", "b"], [(1, "n")])
    )
    await wait_until(lambda: read_sample("transfers_total", **edge) == 1)

    assert read_sample("transfer_bytes_total", **edge) == 1000
    assert (read_sample("transfer_seconds_total", **edge) or 0) > 0


async def test_what_stays_in_a_process_is_no_transfer(here: Place):
    await here.executor("a", {"staying": put_array, "reading": take_input})

    here.office.send(
        make_invocation([make_call("staying"), make_call("reading", x={REF: [0, "array"]})], ["a", "a"], [(1, "n")])
    )
    await wait_until(lambda: here.status("a").done == (1, 1))

    assert read_sample("transfers_total", source="staying", target="reading") is None


def test_edges_that_somebody_makes_up_are_told_together():
    try:
        for number in range(2 * MAX_EDGES):
            TRANSFER.count_transfer("made-up", f"{number}", 1, 0.1)

        totals = [s for family in TRANSFER.pieces.collect() for s in family.samples if s.name.endswith("_total")]
        assert len(totals) <= MAX_EDGES + 1
        assert read_sample("transfers_total", source="other", target="other") is not None
    finally:
        TRANSFER.edge_counters.cache_clear()
        for metric in (TRANSFER.bytes, TRANSFER.seconds, TRANSFER.pieces):
            metric.clear()
