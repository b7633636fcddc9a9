"""Validation of graphs from apps, before executors receive them."""

from omnibus.errors import ProtocolError
from omnibus.graph import verify_uses
from omnibus.task import Segment
from omnibus.task.session import MAX_CALLS, MAX_SEGMENTS, graph_size_error

_MAX_WORK_TOKENS = 1 << 40  # largest estimate of a call, in tokens


def validate_segment(segment: Segment, step: int = 0) -> None:
    """Reject a segment ``step`` that recording would not produce.

    Raises ``TooLarge`` over the limits, and ``ProtocolError``.
    """
    count = len(segment.nodes)
    if not 0 <= step < MAX_SEGMENTS or count > MAX_CALLS:
        raise graph_size_error()
    if not count or not all(len(each) in (0, count) for each in (segment.work, segment.pins)):
        raise ProtocolError("a graph needs at least one call, and as many estimates and pins as calls, or none")
    if not all(0 <= work < _MAX_WORK_TOKENS for work in segment.work) or not all(
        0 <= node < count for node, _ in segment.outputs
    ):
        raise ProtocolError("estimates must be tokens, not negative, and outputs must belong to the graph's own calls")
    verify_uses(segment.nodes)
