"""Candidates as data: what is tried beside a model, how much of its load it gets, and how far it has come."""

from typing import Any, Literal

import msgspec

from omnibus.canary.gate import GateRules
from omnibus.errors import BadRequest, ProtocolError
from omnibus.graph import UNREADABLE
from omnibus.plan import CANDIDATE_MARK, DeploymentOption, ModelPlan

#: How far a candidate has come. ``shadow``: it gets copies of finished requests; ``canary``: users' requests, too;
#: ``promoted``: it has replaced what it was tried against. The others are over: ``failed`` by the gate, ``aborted`` by
#: an operator, ``expired`` without a verdict.
CandidateState = Literal["shadow", "canary", "promoted", "failed", "aborted", "expired"]
#: States in which its executors run beside the others.
ACTIVE: frozenset[str] = frozenset({"shadow", "canary"})
#: The most of users' requests that a candidate gets before it is promoted.
MAX_SHARE = 0.5
#: Executors of each option at most.
MAX_REPLICAS = 64


#: Fields of an option that a candidate may change.
_CHANGEABLE = ("checkpoint", "dtype", "engine", "batch")


class OptionChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Changes of one deployment option of a model; empty fields are as they were."""

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
        """The fields that are different."""
        return {name: value for name in _CHANGEABLE if (value := getattr(self, name))}


class Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A candidate for ``model``: either ``changes`` of its options, or another ``path`` through those that it has.

    ``mirror`` is the part of finished requests that are run again for comparison, ``share`` the part of users'
    requests that it serves as a canary; with a share of 0 it is promoted from the shadow. With ``promote`` it replaces
    what it was tried against by itself once the gate is green, else an operator does it. ``within`` is in seconds from
    ``since``, the Unix time at which its state began; ``reason`` is why it is in that state. ``base`` and ``base_path``
    are what earlier candidates for the model were promoted with.
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
        """True while its executors run beside the others."""
        return self.state in ACTIVE

    def enter_state(self, state: CandidateState, reason: str, now: float) -> "Candidate":
        """Return it in another state, from ``now`` on."""
        return msgspec.structs.replace(self, state=state, reason=reason, since=round(now, 3))

    def next_candidate(self, **fields: Any) -> "Candidate":
        """Return a new candidate for the same model, which is tried on top of what was promoted before."""
        taken = self.state == "promoted"
        base = {change.option: change for change in self.base}
        for change in self.changes if taken else ():
            base[change.option] = base[change.option].merge_change(change) if change.option in base else change
        path = self.path if taken and self.path else self.base_path
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
    """Check ``candidate`` against the plan of its model. Raises ``BadRequest`` that says what is wrong."""

    def require_good(good: bool, fault: str) -> None:
        if not good:
            raise BadRequest(f"candidate for {candidate.model}: {fault}")

    options = sorted(name for name in model.options if not name.endswith(CANDIDATE_MARK))
    require_good(bool(candidate.changes) != bool(candidate.path), "give either a change of options or a path")
    for change in candidate.changes:
        require_good(
            change.option in options,
            f"there is no option {change.option!r}; there is {', '.join(options)}",
        )
        require_good(
            change.apply(model.options[change.option]) != model.options[change.option],
            f"option {change.option} would be what it is: name a checkpoint, dtype, engine or batch",
        )
        require_good(
            not model.options[change.option].of, f"option {change.option} belongs to {model.options[change.option].of}"
        )
        require_good(not change.engine or ":" in change.engine, f"engine {change.engine!r} is not module:function")
        require_good(change.batch >= 0, f"batch {change.batch} is negative")
    for name in candidate.path:
        require_good(name in options, f"there is no option {name!r}; there is {', '.join(options)}")
    runs = {part for name in candidate.path for part in model.options[name].components}
    lacking = sorted(set(model.components) - runs) if candidate.path else []
    require_good(not lacking, f"the path {'>'.join(candidate.path)} runs no {', '.join(lacking)}")
    require_good(0 <= candidate.share <= MAX_SHARE, f"share {candidate.share:g} is not between 0 and {MAX_SHARE:g}")
    require_good(0 < candidate.mirror <= 1, f"mirror {candidate.mirror:g} is not above 0 and at most 1")
    require_good(
        1 <= candidate.replicas <= MAX_REPLICAS, f"{candidate.replicas} replicas, which are 1 to {MAX_REPLICAS}"
    )
    require_good(candidate.within > 0, "the time that it has must be positive")
    candidate.rules.check(require_good)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Candidate).decode


def encode_candidate(candidate: Candidate) -> bytes:
    return _encode(candidate)


def decode_candidate(body: bytes) -> Candidate:
    """Raises ``ProtocolError``."""
    try:
        return _decode(body)
    except UNREADABLE as error:
        raise ProtocolError(f"a stored candidate cannot be read: {error}; abort it and start it again") from error
