"""Candidates as data: the change on trial, its share of the load, and its state."""

from typing import Any, Literal

import msgspec

from omnibus.canary.gate import GateRules
from omnibus.errors import BadRequest, ProtocolError
from omnibus.graph import UNREADABLE
from omnibus.plan import CANDIDATE_MARK, DeploymentOption, ModelPlan

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
