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


def is_void(recorded_invocation: Invocation, control: MirroredRun, candidate: MirroredRun) -> bool:
    """Return True if the comparison is meaningless.

    The control failed, the candidate had no room, or no common output has content.
    """
    if control.failure is not None or isinstance(candidate.failure, Overloaded):
        return True
    one_sided = (control.outputs.keys() ^ candidate.outputs.keys()) & set(recorded_invocation.outputs)
    return candidate.failure is None and not one_sided and not count_comparable(control.outputs, candidate.outputs)


def compare_runs(
    candidate: Candidate, recorded_invocation: Invocation, control: MirroredRun, candidate_run: MirroredRun
) -> Comparison:
    """Compare two runs that are not void."""
    counts = {PAIRS: 1}
    about = {
        "id": recorded_invocation.id,
        "type": recorded_invocation.type,
        "at": round(time.time(), 3),
        "route": list(candidate_run.route),
    }
    if candidate_run.failure is not None:
        counts[FAILED] = 1
        description = f"{candidate_run.failure.code}: {candidate_run.failure.message}"
        return Comparison(
            "failed", counts, {**about, "outcome": "failed", "what": description, "stage": candidate_run.failure.stage}
        )
    differences = find_differences(
        recorded_invocation.nodes, control.outputs, candidate_run.outputs, candidate.rules, recorded_invocation.outputs
    )
    slower = _is_slower(control.seconds, candidate_run.seconds, candidate.rules)
    counts["compared"] = count_comparable(control.outputs, candidate_run.outputs)
    if slower:
        counts[SLOWER] = 1
    if differences:
        counts[DIFFERED] = 1
        counts[f"differed.{differences[0].component}"] = 1
        description = "; ".join(_difference_text(each) for each in differences[:MAX_NAMED_DIFFERENCES])
        finding = {**about, "outcome": "differed", "what": description, "stage": differences[0].component}
        return Comparison("differed", counts, finding)
    if slower:
        stage, description = _slowest_stage(recorded_invocation, control, candidate_run)
        return Comparison("slower", counts, {**about, "outcome": "slower", "what": description, "stage": stage})
    return Comparison("same", counts, None)


def _difference_text(difference: OutputDifference) -> str:
    return f"{difference.component}.{difference.output}: {difference.what}"


def _is_slower(control: float, candidate_seconds: float, rules: GateRules) -> bool:
    return candidate_seconds > rules.slack * control + MIN_SLOWER_SECONDS


def _slowest_stage(
    recorded_invocation: Invocation, control: MirroredRun, candidate_run: MirroredRun
) -> tuple[str, str]:
    """Return the first stage that is much slower, and a description.

    Much slower means at least half of the largest slowdown. A slowdown of later stages may be their wait for it.
    """
    delays = {
        node: _stage_seconds(candidate_run.hops[node]) - _stage_seconds(control.hops[node])
        for node in control.hops.keys() & candidate_run.hops.keys()
    }
    text = f"{1000 * candidate_run.seconds:.0f} ms instead of {1000 * control.seconds:.0f} ms"
    if not delays:
        return "", text
    most = max(delays.values())
    node = min(each for each, seconds in delays.items() if 2 * seconds >= most or seconds == most)
    component = recorded_invocation.nodes[node].component
    return component, f"{text}, {1000 * delays[node]:.0f} ms of it in {component}"


def _stage_seconds(hop: Hop) -> float:
    """Return the seconds of a stage after its first inputs have arrived.

    This includes the time before it opens its inputs and before its engine begins.
    """
    return hop.end - max((hop.taken, *hop.arrived))
