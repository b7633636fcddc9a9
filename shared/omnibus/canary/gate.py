"""Gate of a candidate: compares it with the serving version by sequential tests of pairs of runs.

Each comparison answers three questions with yes or no. Did only the candidate fail? Did it take longer? Did an output
differ by more than the tolerance? For each question, Wald's sequential probability ratio test weighs two hypotheses
about the probability of a yes. (A. Wald, Sequential Tests of Statistical Hypotheses, Annals of Mathematical Statistics
16(2), 1945, section 3.) These are ``good`` at most and ``bad`` at least. After n comparisons with k of them bad, it
computes

  L = k ln(bad / good) + (n - k) ln((1 - bad) / (1 - good))

and decides for bad at L >= ln((1 - b) / a), for good at L <= ln(b / (1 - a)). Here a is the probability of a false
alarm and b that of a miss. The test may be evaluated after every comparison without more errors, unlike a test of a
fixed number. It decides with the fewest comparisons on average. Only the counts matter, not their order, so several
gateways can add theirs up.
"""

from collections.abc import Callable, Mapping
from math import log
from typing import Literal, NamedTuple

import msgspec

Verdict = Literal["green", "red", "open"]

#: Names of the counts of comparisons: all, and those in which the candidate failed, was slower, or differed.
PAIRS, FAILED, SLOWER, DIFFERED = "pairs", "failed", "slower", "differed"
#: Counts of users' requests to a canary: all, the failed ones, and those that took longer than nearly all others.
SERVED, SERVED_FAILED, SERVED_SLOW = "served", "served_failed", "served_slow"


class Bounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Probabilities of a bad comparison: at most ``good`` for a good candidate, at least ``bad`` for a bad one."""

    good: float
    bad: float


class GateRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Rules of the gate: limits of a comparison and probabilities of errors.

    ``tolerance`` is the relative error up to which tensors are equal, 0 for equal bits. The relative error is the norm
    of the difference over that of the value. ``score`` is the least similarity of texts, from 0 to 1, that counts as
    equal; 1 requires equal letters. ``slack`` is the factor by which a run may take longer. ``alarm`` and ``miss`` are
    the probabilities of a false alarm and of a miss, for each question.
    """

    tolerance: float = 0.02
    score: float = 1.0
    slack: float = 1.25
    failed: Bounds = Bounds(0.01, 0.1)
    slower: Bounds = Bounds(0.4, 0.8)
    differed: Bounds = Bounds(0.02, 0.2)
    alarm: float = 0.01
    miss: float = 0.01

    def check(self, require: Callable[[bool, str], None]) -> None:
        """Call ``require`` for each value, with its validity and the problem."""
        for name in ("failed", "slower", "differed"):
            bounds: Bounds = getattr(self, name)
            require(0 < bounds.good < bounds.bad < 1, f"bounds of {name} must satisfy 0 < good < bad < 1")
        for name in ("alarm", "miss"):
            require(0 < getattr(self, name) < 0.5, f"{name} must be a probability between 0 and 0.5")
        require(self.tolerance >= 0, "the tolerance must be 0 or more")
        require(0 <= self.score <= 1, "the score must be between 0 and 1")
        require(self.slack >= 1, "the slack must be a factor of 1 or more")


class Judgement(NamedTuple):
    """Verdict and its reasons, in words."""

    verdict: Verdict
    reason: str


class _Question(NamedTuple):
    """Sequential test: ``bad`` of ``total`` comparisons."""

    text: str
    bad: int
    total: int
    bounds: Bounds

    def judge(self, rules: GateRules) -> Verdict:
        evidence = self.bad * log(self.bounds.bad / self.bounds.good)
        evidence += (self.total - self.bad) * log((1 - self.bounds.bad) / (1 - self.bounds.good))
        if evidence >= log((1 - rules.miss) / rules.alarm):
            return "red"
        return "green" if evidence <= log(rules.miss / (1 - rules.alarm)) else "open"

    def describe(self) -> str:
        return f"{self.text} in {self.bad} of {self.total}"


def judge_shadow(rules: GateRules, counts: Mapping[str, int]) -> Judgement:
    """Return the verdict on pairs of runs: red if any question is red, green if all are green."""
    pairs, failure_count = counts.get(PAIRS, 0), counts.get(FAILED, 0)
    whole = pairs - failure_count
    return _judge(
        rules,
        [
            _Question("it failed", failure_count, pairs, rules.failed),
            _Question("it was slower", counts.get(SLOWER, 0), whole, rules.slower),
            _Question("outputs differed", counts.get(DIFFERED, 0), whole, rules.differed),
        ],
    )


def judge_canary(rules: GateRules, counts: Mapping[str, int]) -> Judgement:
    """Return the verdict on a canary. It depends on pairs of runs and on users' requests."""
    request_count, failure_count = counts.get(SERVED, 0), counts.get(SERVED_FAILED, 0)
    users = _judge(
        rules,
        [
            _Question("users' requests failed", failure_count, request_count, rules.failed),
            _Question(
                "users' requests took longer than 19 of 20 others",
                counts.get(SERVED_SLOW, 0),
                request_count - failure_count,
                Bounds(0.1, 0.4),
            ),
        ],
    )
    pairs = judge_shadow(rules, counts)
    worst: Verdict = "red" if "red" in (users.verdict, pairs.verdict) else users.verdict
    if worst == "red" and users.verdict != "red":
        return pairs
    return Judgement(worst, users.reason)


def _judge(rules: GateRules, questions: list[_Question]) -> Judgement:
    verdicts = [question.judge(rules) for question in questions]
    if "red" in verdicts:
        wrong = [question for question, verdict in zip(questions, verdicts, strict=True) if verdict == "red"]
        return Judgement("red", "; ".join(question.describe() for question in wrong))
    verdict: Verdict = "green" if set(verdicts) == {"green"} else "open"
    return Judgement(verdict, "; ".join(question.describe() for question in questions))
