"""Measured sizes of messages between language model, talker and vocoder."""

from collections.abc import Mapping
from typing import NamedTuple

from omnibus.profile import EdgeProfile, ModelProfile


class StreamSizes(NamedTuple):
    """Sizes of messages.

    ``tokens`` are those of an answer in a message to its talker, and ``codes`` those in one to a vocoder.
    ``codes_per_second`` is the number per second of speech. The defaults apply without measurements.
    """

    tokens: int = 8
    codes: int = 12
    codes_per_second: float = 25.0


def measure_streams(profile: ModelProfile, kinds: Mapping[str, str]) -> StreamSizes:
    """Return the sizes of ``profile``, whose components are of ``kinds``."""
    usual = StreamSizes()
    answers = [edge for edge in profile.edges if edge.bunch > 0 and kinds.get(edge.target) == "talk"]
    spoken = [edge for edge in profile.edges if edge.bunch > 0 and kinds.get(edge.source) == "talk"]
    return StreamSizes(
        _largest_bunch(answers, usual.tokens),
        _largest_bunch(spoken, usual.codes),
        _codes_per_second(spoken, profile) or usual.codes_per_second,
    )


def _largest_bunch(edges: list[EdgeProfile], usual: int) -> int:
    return max(1, round(max(edge.bunch for edge in edges))) if edges else usual


def _codes_per_second(edges: list[EdgeProfile], profile: ModelProfile) -> float:
    """Return codes over seconds of speech, of all request types; 0 if not measured."""
    codes = seconds = 0.0
    for edge in edges:
        kind = profile.types.get(edge.type)
        spoken = kind.quantities.get("speech_seconds", 0.0) if kind is not None else 0.0
        if spoken > 0:
            codes, seconds = codes + edge.rows, seconds + spoken
    return codes / seconds if seconds > 0 else 0.0
