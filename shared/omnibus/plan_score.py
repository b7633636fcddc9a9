"""Scores of plans: the promise for the actual requests, and the measurement. Data, no I/O."""

import msgspec

from omnibus.errors import ProtocolError
from omnibus.graph import UNREADABLE


class ScoredValue(msgspec.Struct, frozen=True):
    """A figure as promised and as measured. ``error`` is their difference as a part of the promise."""

    promised: float
    measured: float
    error: float = 0.0


def score_value(promise: float, measurement: float) -> ScoredValue:
    """Return both with their error; for a promise of 0, the error is 0 or 1."""
    error = measurement / promise - 1.0 if promise > 0 else float(measurement > 0)
    return ScoredValue(promise, measurement, error)


class TypeScore(msgspec.Struct, frozen=True):
    """Score of one request type of a model: successful ``requests``, and their ``rate`` in req/s.

    ``p50`` and ``p99`` are in seconds by figure (``omnibus.cluster.latency_histogram.FIGURES``), ``attained`` is the
    share of requests within each goal. They are empty if executors were too busy for latencies to be promised, or if
    the profile has no latencies of single requests.
    """

    model: str
    kind: str
    requests: int
    rate: ScoredValue
    p50: dict[str, ScoredValue] = {}
    p99: dict[str, ScoredValue] = {}
    attained: dict[str, ScoredValue] = {}


class OptionScore(msgspec.Struct, frozen=True):
    """Score of one option: the ``busy`` share of its executors' time, over ``jobs`` of a component.

    ``seconds`` are their compute seconds, promised for the actual batches. Only language models, or halves of one, have
    them, and only if the engine counts its batches. Such an engine is as busy with one sequence as with sixteen.
    """

    model: str
    option: str
    jobs: int
    busy: ScoredValue
    seconds: ScoredValue | None = None


class PlanScore(msgspec.Struct, frozen=True):
    """Score of the plan of ``epoch`` over ``seconds`` until ``at``, Unix seconds.

    ``load`` is the actual load as a part of the highest load planned for the busiest option.
    """

    epoch: int
    at: float
    seconds: float
    load: float
    types: tuple[TypeScore, ...] = ()
    options: tuple[OptionScore, ...] = ()


class LearnedOption(msgspec.Struct, frozen=True):
    """Measured time of an option, as a ``factor`` on its profile's seconds.

    It is based on ``jobs``.
    """

    factor: float
    jobs: int


class LearnedSeconds(msgspec.Struct, frozen=True):
    """Factors of a model's options; ``profile`` is the ``profile_digest`` of their profile."""

    profile: str
    options: dict[str, LearnedOption] = {}


encode = msgspec.json.Encoder().encode
_decode_score = msgspec.json.Decoder(PlanScore).decode
_decode_learned = msgspec.json.Decoder(LearnedSeconds).decode


def decode_score(body: bytes) -> PlanScore:
    """Decode a score. Raises ``ProtocolError`` if another build wrote it."""
    try:
        return _decode_score(body)
    except UNREADABLE as error:
        raise ProtocolError(f"the stored score of a plan cannot be read: {error}") from error


def decode_learned(body: bytes) -> LearnedSeconds:
    """Decode learned seconds. Raises ``ProtocolError`` if another build wrote them."""
    try:
        return _decode_learned(body)
    except UNREADABLE as error:
        raise ProtocolError(f"the stored seconds of a model cannot be read: {error}") from error
