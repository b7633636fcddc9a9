"""Candidates as data: the change on trial, its share of the load, and its state.

Gate of a candidate: compares it with the serving version by sequential tests of pairs of runs.

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

Plan of a model with a candidate added, promoted or removed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import log
from typing import Any, Literal, NamedTuple

import msgspec

from omnibus.errors import BadRequest, ProtocolError
from omnibus.graph import UNREADABLE
from omnibus.plan import CANDIDATE_MARK, DeploymentOption, ModelPlan, Path

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


#: State of a candidate. ``shadow``: it gets copies of finished requests. ``canary``: it also gets users' requests.
#: ``promoted``: it has replaced the version that it was compared with. The other states are final: ``failed`` by the
#: gate, ``aborted`` by an operator, ``expired`` without a verdict.
CandidateState = Literal["shadow", "canary", "promoted", "failed", "aborted", "expired"]
#: States in which its executors run in addition to the others.
ACTIVE: frozenset[str] = frozenset({"shadow", "canary"})
#: Largest share of users' requests that a candidate gets before it is promoted.
MAX_SHARE = 0.5
#: Most executors of each option.
MAX_REPLICAS = 64


#: Fields of an option that a candidate may change.
_CHANGEABLE = ("checkpoint", "dtype", "engine", "batch")


class OptionChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Changes of one deployment option of a model. Empty fields keep their values."""

    option: str
    checkpoint: str = ""
    dtype: str = ""
    engine: str = ""
    batch: int = 0

    def apply(self, option: DeploymentOption) -> DeploymentOption:
        """Return ``option`` with this change."""
        return msgspec.structs.replace(option, **self.values())

    def merge_change(self, later: "OptionChange") -> "OptionChange":
        """Return this change with ``later`` on top of it."""
        return msgspec.structs.replace(self, **later.values())

    def values(self) -> dict[str, Any]:
        """Return the changed fields."""
        return {name: value for name in _CHANGEABLE if (value := getattr(self, name))}


class Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Candidate for ``model``: ``changes`` of its options, or another ``path`` through its present ones.

    ``mirror`` is the share of finished requests that run again for comparison. ``share`` is the share of users'
    requests that it serves as a canary. With a share of 0 it is promoted from the shadow. With ``promote``, it is
    promoted automatically when the gate is green, else by an operator. ``within`` is in seconds from ``since``, the
    Unix time at which its state began. ``reason`` is why it is in that state. ``base`` and ``base_path`` are the
    promoted changes of earlier candidates for the model.
    """

    id: str
    model: str
    changes: tuple[OptionChange, ...] = ()
    path: tuple[str, ...] = ()
    replicas: int = 1
    mirror: float = 0.1
    share: float = 0.05
    promote: bool = False
    rules: GateRules = GateRules()
    within: float = 3600.0
    created: float = 0.0
    state: CandidateState = "shadow"
    since: float = 0.0
    reason: str = ""
    base: tuple[OptionChange, ...] = ()
    base_path: tuple[str, ...] = ()

    @property
    def is_active(self) -> bool:
        """Return True while its executors run in addition to the others."""
        return self.state in ACTIVE

    def enter_state(self, state: CandidateState, reason: str, now: float) -> "Candidate":
        """Return the candidate in another state, from ``now`` on."""
        return msgspec.structs.replace(self, state=state, reason=reason, since=round(now, 3))

    def next_candidate(self, **fields: Any) -> "Candidate":
        """Return a new candidate for the same model. It includes the changes that were promoted before."""
        is_promoted = self.state == "promoted"
        base = {change.option: change for change in self.base}
        for change in self.changes if is_promoted else ():
            base[change.option] = base[change.option].merge_change(change) if change.option in base else change
        path = self.path if is_promoted and self.path else self.base_path
        return Candidate(model=self.model, base=tuple(base.values()), base_path=path, **fields)

    def describe(self) -> str:
        """Describe the change in words."""
        if self.path:
            return f"path {'>'.join(self.path)}"
        return ", ".join(
            f"{change.option} with " + " ".join(f"{name} {value}" for name, value in change.values().items())
            for change in self.changes
        )


def check_candidate(candidate: Candidate, model: ModelPlan) -> None:
    """Check ``candidate`` against the plan of its model. Raises ``BadRequest`` with the problem."""

    def require_good(good: bool, fault: str) -> None:
        if not good:
            raise BadRequest(f"candidate for {candidate.model}: {fault}")

    options = sorted(name for name in model.options if not name.endswith(CANDIDATE_MARK))
    require_good(bool(candidate.changes) != bool(candidate.path), "give either a change of options or a path")
    for change in candidate.changes:
        require_good(
            change.option in options,
            f"unknown option {change.option!r}; there is {', '.join(options)}",
        )
        require_good(
            change.apply(model.options[change.option]) != model.options[change.option],
            f"option {change.option} would not change: name a checkpoint, dtype, engine or batch",
        )
        require_good(
            not model.options[change.option].of, f"option {change.option} belongs to {model.options[change.option].of}"
        )
        require_good(
            not change.engine or ":" in change.engine, f"engine must be module:function, not {change.engine!r}"
        )
        require_good(change.batch >= 0, f"batch must be 0 or more, not {change.batch}")
    for name in candidate.path:
        require_good(name in options, f"unknown option {name!r}; there is {', '.join(options)}")
    runs = {part for name in candidate.path for part in model.options[name].components}
    lacking = sorted(set(model.components) - runs) if candidate.path else []
    require_good(not lacking, f"the path {'>'.join(candidate.path)} runs no {', '.join(lacking)}")
    require_good(
        0 <= candidate.share <= MAX_SHARE, f"share must be between 0 and {MAX_SHARE:g}, not {candidate.share:g}"
    )
    require_good(0 < candidate.mirror <= 1, f"mirror must be above 0 and at most 1, not {candidate.mirror:g}")
    require_good(
        1 <= candidate.replicas <= MAX_REPLICAS, f"replicas must be 1 to {MAX_REPLICAS}, not {candidate.replicas}"
    )
    require_good(candidate.within > 0, f"within must be above 0, not {candidate.within:g}")
    candidate.rules.check(require_good)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Candidate).decode


def encode_candidate(candidate: Candidate) -> bytes:
    return _encode(candidate)


def decode_candidate(body: bytes) -> Candidate:
    """Decode a stored candidate. Raises ``ProtocolError``."""
    try:
        return _decode(body)
    except UNREADABLE as error:
        raise ProtocolError(f"cannot read a stored candidate (abort it and start it again): {error}") from error


def overlay_models(models: Mapping[str, ModelPlan], candidates: Iterable[Candidate]) -> dict[str, ModelPlan]:
    """Return ``models`` with the changes of ``candidates``. A candidate that does not fit its model changes nothing."""
    result = dict(models)
    for candidate in candidates:
        if candidate.model in result:
            result[candidate.model] = overlay_model(result[candidate.model], candidate)
    return result


def overlay_model(model: ModelPlan, candidate: Candidate) -> ModelPlan:
    """Return ``model`` with earlier promoted changes and with ``candidate`` in its state.

    Changes of options that no longer exist have no effect.
    """
    model = _promote(model, candidate.base, candidate.base_path)
    if candidate.state == "promoted":
        return _promote(model, candidate.changes, candidate.path)
    return _add_beside(model, candidate) if candidate.is_active else model


def without_candidate(model: ModelPlan) -> ModelPlan:
    """Return ``model`` without the options and paths of a candidate."""
    if not any(is_candidate_option(name) for name in model.options):
        return model
    options = {name: option for name, option in model.options.items() if not is_candidate_option(name)}
    types = {kind: tuple(path for path in paths if not path.is_candidate) for kind, paths in model.types.items()}
    return msgspec.structs.replace(model, options=options, types=types)


def is_candidate_option(name: str) -> bool:
    return name.endswith(CANDIDATE_MARK)


def find_control(paths: Iterable[Path], candidate_path: Path, candidate: Candidate) -> Path | None:
    """Return the path of ``paths`` to compare with ``candidate_path`` of ``candidate``.

    It has the same options without the mark. If the candidate is another path, or there is no such path, it is compared
    with the busiest one.
    """
    plain_paths = [path for path in paths if not path.is_candidate]
    plain = {part: option.removesuffix(CANDIDATE_MARK) for part, option in candidate_path.options.items()}
    same = next((path for path in plain_paths if path.options == plain), None) if not candidate.path else None
    return same or max(plain_paths, key=lambda path: path.rate, default=None)


def _promote(model: ModelPlan, changes: Iterable[OptionChange], through: tuple[str, ...]) -> ModelPlan:
    by_option = {change.option: change for change in changes}
    options = {
        name: by_option[name].apply(option) if name in by_option else option for name, option in model.options.items()
    }
    types = model.types
    if through and set(through) <= options.keys():
        types = {kind: _whole_path(model, through, paths) for kind, paths in types.items()}
    return msgspec.structs.replace(model, options=options, types=types)


def _whole_path(model: ModelPlan, through: tuple[str, ...], paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return paths that send all requests ``through`` these options. The others are used if one of the options has no
    executor."""
    options = _path_options(model, through, paths[0].options)
    best = _build_path(options, 1.0)
    return (best, *(msgspec.structs.replace(path, rate=0.0) for path in paths if path.options != options))


def _add_beside(model: ModelPlan, candidate: Candidate) -> ModelPlan:
    if not {*candidate.path, *(change.option for change in candidate.changes)} <= model.options.keys():
        return model
    new_options = dict(_candidate_options(model, candidate))
    candidate_names = {name.removesuffix(CANDIDATE_MARK): name for name in new_options}
    share = candidate.share if candidate.state == "canary" else 0.0
    types = {
        kind: (*paths, *_candidate_paths(model, candidate, paths, candidate_names, share))
        for kind, paths in model.types.items()
    }
    return msgspec.structs.replace(model, options={**model.options, **new_options}, types=types)


def _candidate_options(model: ModelPlan, candidate: Candidate) -> Iterator[tuple[str, DeploymentOption]]:
    for change in candidate.changes:
        option = change.apply(model.options[change.option])
        yield change.option + CANDIDATE_MARK, msgspec.structs.replace(option, replicas=candidate.replicas)
    for name in dict.fromkeys(candidate.path):
        option = model.options[name]
        yield (
            name + CANDIDATE_MARK,
            msgspec.structs.replace(option, replicas=candidate.replicas if not option.of else 0),
        )


def _candidate_paths(
    model: ModelPlan, candidate: Candidate, paths: tuple[Path, ...], candidate_names: Mapping[str, str], share: float
) -> Iterator[Path]:
    """Yield the candidate's path for a request type. There is none if the candidate does not change ``paths``."""
    total = sum(path.rate for path in paths)
    rate = share / (1.0 - share) * total
    if candidate.path:
        options = _path_options(model, candidate.path, paths[0].options if paths else {})
        yield _build_path({part: candidate_names[option] for part, option in options.items()}, rate)
        return
    affected_paths = [path for path in paths if not candidate_names.keys().isdisjoint(path.options.values())]
    if affected_paths:
        busiest = max(affected_paths, key=lambda path: path.rate)
        yield _build_path({part: candidate_names.get(option, option) for part, option in busiest.options.items()}, rate)


def _path_options(model: ModelPlan, through: tuple[str, ...], parts: Iterable[str]) -> dict[str, str]:
    """Return the first option of ``through`` that runs each part."""
    return {part: next(name for name in through if part in model.options[name].components) for part in parts}


def _build_path(options: dict[str, str], rate: float) -> Path:
    return Path(">".join(dict.fromkeys(options.values())), options, rate)
