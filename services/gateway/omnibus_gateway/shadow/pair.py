"""Comparison of one finished request on serving version and candidate."""

import time
from typing import Any, Literal, NamedTuple

from omnibus.bus.messages import Hop
from omnibus.canary.candidate import Candidate
from omnibus.canary.gate import DIFFERED, FAILED, PAIRS, SLOWER, GateRules
from omnibus.errors import Overloaded
from omnibus.graph import Invocation
from omnibus_gateway.replay.mirrored import MirroredRun
from omnibus_gateway.shadow.compare import OutputDifference, count_comparable, find_differences

#: Seconds by which runs may always differ: smaller differences are noise.
MIN_SLOWER_SECONDS = 0.005
#: Maximum number of differences in a finding.
MAX_NAMED_DIFFERENCES = 5

Outcome = Literal["same", "failed", "slower", "differed"]


class Comparison(NamedTuple):
    """Result of two runs: counts for the candidate, and a description of the problem, if any."""

    outcome: Outcome
    counts: dict[str, int]
    finding: dict[str, Any] | None


def is_void(recorded: Invocation, control: MirroredRun, candidate: MirroredRun) -> bool:
    """Return True if the comparison is meaningless.

    The control failed, the candidate had no room, or no common output has content.
    """
    if control.failure is not None or isinstance(candidate.failure, Overloaded):
        return True
    one_sided = (control.outputs.keys() ^ candidate.outputs.keys()) & set(recorded.outputs)
    return candidate.failure is None and not one_sided and not count_comparable(control.outputs, candidate.outputs)


def compare_runs(candidate: Candidate, recorded: Invocation, control: MirroredRun, tried: MirroredRun) -> Comparison:
    """Compare two runs that are not void."""
    counts = {PAIRS: 1}
    about = {"id": recorded.id, "type": recorded.type, "at": round(time.time(), 3), "route": list(tried.route)}
    if tried.failure is not None:
        counts[FAILED] = 1
        what = f"{tried.failure.code}: {tried.failure.message}"
        return Comparison("failed", counts, {**about, "outcome": "failed", "what": what, "stage": tried.failure.stage})
    differences = find_differences(recorded.nodes, control.outputs, tried.outputs, candidate.rules, recorded.outputs)
    slower = _is_slower(control.seconds, tried.seconds, candidate.rules)
    counts["compared"] = count_comparable(control.outputs, tried.outputs)
    if slower:
        counts[SLOWER] = 1
    if differences:
        counts[DIFFERED] = 1
        counts[f"differed.{differences[0].component}"] = 1
        what = "; ".join(_difference_text(each) for each in differences[:MAX_NAMED_DIFFERENCES])
        finding = {**about, "outcome": "differed", "what": what, "stage": differences[0].component}
        return Comparison("differed", counts, finding)
    if slower:
        stage, what = _slowest_stage(recorded, control, tried)
        return Comparison("slower", counts, {**about, "outcome": "slower", "what": what, "stage": stage})
    return Comparison("same", counts, None)


def _difference_text(difference: OutputDifference) -> str:
    return f"{difference.component}.{difference.output}: {difference.what}"


def _is_slower(control: float, tried: float, rules: GateRules) -> bool:
    return tried > rules.slack * control + MIN_SLOWER_SECONDS


def _slowest_stage(recorded: Invocation, control: MirroredRun, tried: MirroredRun) -> tuple[str, str]:
    """Return the first stage that is much slower, and a description.

    Much slower means at least half of the largest slowdown. A slowdown of later stages may be their wait for it.
    """
    lost = {
        node: _stage_seconds(tried.hops[node]) - _stage_seconds(control.hops[node])
        for node in control.hops.keys() & tried.hops.keys()
    }
    text = f"{1000 * tried.seconds:.0f} ms instead of {1000 * control.seconds:.0f} ms"
    if not lost:
        return "", text
    most = max(lost.values())
    node = min(each for each, seconds in lost.items() if 2 * seconds >= most or seconds == most)
    component = recorded.nodes[node].component
    return component, f"{text}, {1000 * lost[node]:.0f} ms of it in {component}"


def _stage_seconds(hop: Hop) -> float:
    """Return the seconds of a stage after its first inputs have arrived.

    This includes the time before it opens its inputs and before its engine begins.
    """
    return hop.end - max((hop.taken, *hop.arrived))
