"""Prometheus metrics of an executor's runners and of transferred tensors."""

from typing import Any

import numpy as np

from omnibus.executor import metrics
from omnibus.executor.runner import Job
from omnibus.graph import REF
from omnibus.metrics import MAX_EDGES, REGISTRY, TRANSFER
from tests.unit.executor.arithmetic import Place, call, invocation
from tests.unit.sidecar.node import until


class Counting:
    """A runner that only reports ``stats``."""

    def __init__(self, **stats: Any) -> None:
        self._stats = stats

    def stats(self) -> dict[str, Any]:
        return self._stats


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"omnibus_{name}", labels)


def test_runners_are_asked_for_what_they_count():
    runners = {
        "llm": Counting(waiting=3, slots=16, used=2, tokens=40, batches={"1": 2, "6": 3}),
        "own": Counting(task="x"),
    }
    metrics.watch_runners(runners)  # type: ignore[arg-type]

    assert value("engine_waiting", component="llm") == 3
    assert value("engine_slots_used", component="llm") == 2
    assert value("engine_tokens_total", component="llm") == 40
    assert value("engine_waiting", component="own") is None
    assert value("batch_size_bucket", component="llm", le="4.0") == 2
    assert value("batch_size_sum", component="llm") == 20
    assert value("batch_size_count", component="own") is None


def test_what_a_runner_says_of_another_kind_is_left_out():
    metrics.watch_runners({"llm": Counting(waiting="many")})  # type: ignore[dict-item]

    assert value("engine_waiting", component="llm") is None


async def give(job: Job) -> None:
    await job.put("array", {}, np.zeros(1000, np.uint8))


async def take(job: Job) -> None:
    await job.value("x")
    await job.put("n", {"n": 1})


async def test_tensors_are_counted_by_who_sends_and_who_reads(here: Place):
    await here.executor("a", {"giving": give})
    await here.executor("b", {"taking": take})
    edge = {"source": "giving", "target": "taking"}

    here.office.send(invocation([call("giving"), call("taking", x={REF: [0, "array"]})], ["a", "b"], [(1, "n")]))
    await until(lambda: value("transfers_total", **edge) == 1)

    assert value("transfer_bytes_total", **edge) == 1000
    assert (value("transfer_seconds_total", **edge) or 0) > 0


async def test_what_stays_in_a_process_is_no_transfer(here: Place):
    await here.executor("a", {"staying": give, "reading": take})

    here.office.send(invocation([call("staying"), call("reading", x={REF: [0, "array"]})], ["a", "a"], [(1, "n")]))
    await until(lambda: here.status("a").done == (1, 1))

    assert value("transfers_total", source="staying", target="reading") is None


def test_edges_that_somebody_makes_up_are_told_together():
    try:
        for number in range(2 * MAX_EDGES):
            TRANSFER.count_transfer("made-up", f"{number}", 1, 0.1)

        known = [s for family in TRANSFER.pieces.collect() for s in family.samples if s.name.endswith("_total")]
        assert len(known) <= MAX_EDGES + 1
        assert value("transfers_total", source="other", target="other") is not None
    finally:
        TRANSFER.edge_counters.cache_clear()
        for metric in (TRANSFER.bytes, TRANSFER.seconds, TRANSFER.pieces):
            metric.clear()
