"""Two runs of one request, compared by their times."""

import msgspec

from omnibus.bus.messages import Hop
from omnibus.canary.candidate import Candidate
from services.gateway.replay.mirrored import MirroredRun
from services.gateway.shadow.pair import compare_runs
from tests.unit.cli.documents import invocation


def run(seconds: float, *hops: Hop) -> MirroredRun:
    return MirroredRun({}, seconds, {hop.node: hop for hop in hops}, None, ("v", "t"))


def hop(node: int, taken: float, began: float, end: float, *arrived: float) -> Hop:
    return Hop("i", node, "x", taken, began, end, end, began=began, arrived=arrived)


def test_a_stage_is_slower_that_loses_its_time_before_it_opens_its_inputs():
    recorded = invocation()
    recorded = msgspec.structs.replace(recorded, nodes=recorded.nodes[1:])
    control = run(0.2, hop(0, 0.0, 0.01, 0.05), hop(1, 0.0, 0.06, 0.2, 0.05))
    tried = run(0.4, hop(0, 0.0, 0.16, 0.2), hop(1, 0.0, 0.21, 0.37, 0.2))

    found = compare_runs(Candidate("one", "m"), recorded, control, tried)

    assert found.outcome == "slower"
    assert found.finding is not None
    assert found.finding["stage"] == "vision"
