"""Comparing the times of two runs of one request, and inconclusive pairs."""

from typing import Any

import msgspec
import numpy as np
import pytest

from omnibus.bus.messages import Hop
from omnibus.canary.candidate import Candidate
from omnibus_gateway.dispatch.retention import RecordedChunk
from omnibus_gateway.rerun.replayer import MirroredRun
from omnibus_gateway.shadow.mirror import compare_runs, is_void
from tests.unit.cli.documents import make_invocation


def make_run(seconds: float, *hops: Hop) -> MirroredRun:
    return MirroredRun({}, seconds, {hop.node: hop for hop in hops}, None, ("v", "t"))


def make_hop(node: int, take_time: float, began: float, end: float, *arrived: float) -> Hop:
    return Hop("i", node, "x", take_time, began, end, end, began=began, arrived=arrived)


def test_a_stage_is_slower_that_loses_its_time_before_it_opens_its_inputs():
    base_invocation = make_invocation()
    base_invocation = msgspec.structs.replace(base_invocation, nodes=base_invocation.nodes[1:])
    control = make_run(0.2, make_hop(0, 0.0, 0.01, 0.05), make_hop(1, 0.0, 0.06, 0.2, 0.05))
    trial = make_run(0.4, make_hop(0, 0.0, 0.16, 0.2), make_hop(1, 0.0, 0.21, 0.37, 0.2))

    comparison = compare_runs(Candidate("one", "m"), base_invocation, control, trial)

    assert comparison.outcome == "slower"
    assert comparison.finding is not None
    assert comparison.finding["stage"] == "vision"


#: The recorded graph's output, and the output of an inner stage.
TEXT, EMBEDDING = (2, "text"), (0, "embedding")
SAID, CLOSED = [RecordedChunk({"text": "hi"})], [RecordedChunk({"finish_reason": "stop", "usage": {}}, last=True)]
ROWS, NO_ROWS = [RecordedChunk({}, np.ones((2, 4), np.float32))], [RecordedChunk({}, np.ones((0, 4), np.float32))]


@pytest.mark.parametrize(
    ("control", "candidate", "outcome"),
    [
        ({}, {}, "void"),
        ({TEXT: CLOSED}, {TEXT: CLOSED}, "void"),  # both answers are empty
        ({TEXT: NO_ROWS}, {TEXT: NO_ROWS}, "void"),
        ({EMBEDDING: ROWS}, {}, "void"),  # no output is in both
        ({TEXT: SAID}, {TEXT: SAID}, "same"),
        ({TEXT: SAID, EMBEDDING: ROWS}, {TEXT: SAID}, "same"),  # an optional output of one run
        ({TEXT: SAID}, {TEXT: CLOSED}, "differed"),
        ({TEXT: CLOSED}, {TEXT: SAID}, "differed"),
        ({TEXT: SAID, EMBEDDING: ROWS}, {EMBEDDING: ROWS}, "differed"),  # the answer ended early
        ({TEXT: SAID}, {}, "differed"),
    ],
)
def test_what_is_not_in_both_runs_is_not_the_same(control: dict[Any, Any], candidate: dict[Any, Any], outcome: str):
    base_invocation, one, other = make_invocation(), make_run(0.2), make_run(0.2)
    one, other = one._replace(outputs=control), other._replace(outputs=candidate)

    assert is_void(base_invocation, one, other) is (outcome == "void")
    if outcome != "void":
        comparison = compare_runs(Candidate("one", "m"), base_invocation, one, other)
        assert (comparison.outcome, comparison.counts.get("compared", 0) > 0) == (
            outcome,
            bool(control.keys() & candidate.keys()),
        )
