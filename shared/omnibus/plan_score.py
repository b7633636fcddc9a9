"""Scores of plans: what a plan promised for the requests that came, and what was measured. Data, no I/O."""

import msgspec

from omnibus.errors import ProtocolError
from omnibus.graph import UNREADABLE


class ScoredValue(msgspec.Struct, frozen=True):
    """A figure as promised and as measured. ``error`` is the part of the promise by which the measurement differs."""

    promised: float
    measured: float
    error: float = 0.0


def score_value(promised: float, measured: float) -> ScoredValue:
    """Return both with their error; of a promise of 0 it is 0 or 1."""
    error = measured / promised - 1.0 if promised > 0 else float(measured > 0)
    return ScoredValue(promised, measured, error)


class TypeScore(msgspec.Struct, frozen=True):
    """Score of one request type of a model: ``requests`` that ended well, and their ``rate`` in req/s.

    ``p50`` and ``p99`` are in seconds by figure (``omnibus.cluster.latency_histogram.FIGURES``), ``attained`` is the
    share of requests within each goal. They are empty where executors were too busy for latencies to be promised, or
    the profile does not tell what requests alone take.
    """

    model: str
    kind: str
    requests: int
    rate: ScoredValue
    p50: dict[str, ScoredValue] = {}
    p99: dict[str, ScoredValue] = {}
    attained: dict[str, ScoredValue] = {}


class OptionScore(msgspec.Struct, frozen=True):
    """Score of one option: the part of their time that its executors were ``busy``, over ``jobs`` of a component.

    ``seconds`` are those that they computed, promised for the very batches that there were. Only of options that are a
    language model, or a half of one, whose engine counts its batches: it is busy with one sequence as with sixteen.
    """

    model: str
    option: str
    jobs: int
    busy: ScoredValue
    seconds: ScoredValue | None = None


class PlanScore(msgspec.Struct, frozen=True):
    """Score of the plan of ``epoch`` over the last ``seconds`` before ``at``, Unix seconds.

    ``load`` is what came as a part of what the busiest option was to serve at most.
    """

    epoch: int
    at: float
    seconds: float
    load: float
    types: tuple[TypeScore, ...] = ()
    options: tuple[OptionScore, ...] = ()


class LearnedOption(msgspec.Struct, frozen=True):
    """Time that executors of an option take, as a ``factor`` on the seconds of its profile, by so many ``jobs``."""

    factor: float
    jobs: int


class LearnedSeconds(msgspec.Struct, frozen=True):
    """Factors of a model's options; ``profile`` names the profile that they are for (``profile_digest``)."""

    profile: str
    options: dict[str, LearnedOption] = {}


encode = msgspec.json.Encoder().encode
_decode_score = msgspec.json.Decoder(PlanScore).decode
_decode_learned = msgspec.json.Decoder(LearnedSeconds).decode


def decode_score(body: bytes) -> PlanScore:
    """Raises ``ProtocolError`` for what another build wrote."""
    try:
        return _decode_score(body)
    except UNREADABLE as error:
        raise ProtocolError(f"the stored score of a plan cannot be read: {error}") from error


def decode_learned(body: bytes) -> LearnedSeconds:
    """Raises ``ProtocolError`` for what another build wrote."""
    try:
        return _decode_learned(body)
    except UNREADABLE as error:
        raise ProtocolError(f"the stored seconds of a model cannot be read: {error}") from error
