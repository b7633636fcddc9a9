"""Errors for a sidecar that refuses, and for one that is unreachable."""

from omnibus.errors import (
    ArenaFull,
    DeadlineExceeded,
    NodeUnreachable,
    OmnibusError,
    ProtocolError,
    Retryable,
    TooLarge,
)
from omnibus.tensors.protocol import SidecarFrame, Verb


def refusal_error(answer: SidecarFrame, nbytes: int, wait: float) -> OmnibusError:
    """Return the error of an ``answer`` without memory for ``nbytes``; ``wait`` is in seconds."""
    if answer.verb == Verb.TOO_LARGE:
        return TooLarge(f"a tensor of {nbytes} bytes never fits into this arena; its limit is {answer.nbytes} bytes")
    if answer.verb == Verb.FULL:
        if answer.text:
            return ArenaFull(f"no room for {nbytes} bytes within {wait:.2f} s ({answer.text.decode()}); retry later")
        return ArenaFull(
            f"no room for {nbytes} bytes within {wait:.2f} s. {answer.nbytes} bytes are free, "
            f"{answer.offset} in one piece; retry, or give the sidecar a larger arena"
        )
    if answer.verb == Verb.LATE:
        return DeadlineExceeded(f"the deadline passed before {nbytes} bytes were allocated")
    if answer.verb == Verb.ENDED:
        return DeadlineExceeded(f"the invocation ended while it waited for {nbytes} bytes")
    return ProtocolError(f"the sidecar answered an allocation with verb {answer.verb}")


def away_error(message: str, node: str) -> Retryable:
    """Return the error of a sidecar that does not answer.

    With ``node``, its name if there are other nodes, the error allows the work to run on another node.
    """
    return NodeUnreachable(message, node=node) if node else Retryable(message)
