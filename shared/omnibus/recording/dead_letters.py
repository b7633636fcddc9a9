"""Dead letters: inputs that crashed or failed an engine, kept with the reason in a separate stream.

- ``crashed``: the executor of the last attempt died, or its engine did, and no attempt was left.
- ``failed``: an engine failed on this input, which is a defect, not a client's mistake.

Mistakes of clients, late requests and cancelled requests are not dead letters. Users' content is omitted, except with
``OMNIBUS_GATEWAY_DEADLETTERS=full``. Sizes and digests distinguish inputs, and the record stream has the rest for as
long as it is retained.
"""

import msgspec

from omnibus import graph
from omnibus.bus import Bus, Stored, messages, subjects
from omnibus.bus.subjects import DEADLETTERS
from omnibus.errors import BadRequest, DeadlineExceeded, Fatal, NotFound, OmnibusError, ProblemDetails, ProtocolError
from omnibus.graph import DIGEST, UNREADABLE, WIRE_VERSION, Invocation
from omnibus.recording.records import Moved, find_record

#: Reasons to stop an attempt that cost an executor, or its engine.
EXECUTOR_LOSS_REASONS = frozenset({"gone", "unavailable"})

CRASHED, FAILED = REASONS = "crashed", "failed"


class DeadLetter(msgspec.Struct, frozen=True, omit_defaults=True):
    """One input. Times are Unix seconds; ``invocation`` has sizes and digests of the inputs, or all of them."""

    v: int
    inv: str
    reason: str
    at: float
    created: float
    app: str
    model: str
    type: str
    path: str
    problem: ProblemDetails
    attempts: int = 1
    #: The node that failed or whose executor was lost, and its component; -1 when it is not known.
    node: int = -1
    component: str = ""
    #: Executors that were lost with it, in order.
    lost: tuple[str, ...] = ()
    moves: tuple[Moved, ...] = ()
    replay_of: str = ""
    invocation: Invocation | None = None
    #: Digests of the nodes with which gateways refuse an invocation for a while, because they ended executors.
    refused: tuple[str, ...] = ()


def dead_letter_reason(failure: OmnibusError | None, node: int, moves: list[Moved], attempt: int) -> str:
    """Return why a failed invocation is a dead letter; empty if it is not.

    It failed in ``attempt`` with ``failure``. ``node`` is the one that an executor reported as failed, -1 for none.
    """
    if failure is None:
        return ""
    last = moves[-1] if moves else None
    if last is not None and last.attempt == attempt and last.reason in EXECUTOR_LOSS_REASONS:
        return CRASHED
    engine = isinstance(failure, Fatal) and not isinstance(failure, DeadlineExceeded)
    return FAILED if engine and node >= 0 and failure.executor else ""


def encode_dead_letter(*letters: DeadLetter, limit: int) -> bytes:
    """Encode the first of ``letters`` with at most ``limit`` bytes.

    If all are larger, it is the last one without its graph.
    """
    for letter in letters:
        if len(body := messages.encode(letter)) <= limit:
            return body
    return messages.encode(msgspec.structs.replace(letters[-1], invocation=None))


def decode_dead_letter(body: bytes) -> DeadLetter:
    """Decode a dead letter. Raises ``ProtocolError``."""
    try:
        letter = _decode(body)
    except UNREADABLE as error:
        raise ProtocolError(f"not a dead letter: {graph.explain_unreadable(body, error)}") from error
    if letter.v != WIRE_VERSION:
        raise ProtocolError(f"dead letter of wire version {letter.v}, this build reads {WIRE_VERSION}: update one side")
    return letter


_decode = msgspec.json.Decoder(DeadLetter).decode


# Queries


async def list_dead_letters(bus: Bus, count: int, below: int = 0) -> list[Stored]:
    """Return the stored messages of the last dead letters, newest first."""
    return (await bus.read_latest(DEADLETTERS, count, below))[::-1]


async def read_dead_letter(bus: Bus, id: str) -> DeadLetter:
    """Return the last letter of invocation ``id``. Raises ``NotFound``."""
    if not graph.is_addressable(id) or "." in id:
        raise NotFound(f"{id[:80]!r} is not an id of an invocation")
    letters = await bus.read_records(f"{subjects.ROOT}.event.deadletter.*.{id}", DEADLETTERS)
    if not letters:
        raise NotFound(f"no dead letter of invocation {id[:80]}: `omnibus deadletters` lists those that there are")
    return decode_dead_letter(letters[-1].data)


async def resolve_invocation(bus: Bus, letter: DeadLetter) -> Invocation:
    """Return the invocation that runs the input of ``letter`` again: the letter's own, or the record's.

    Raises ``BadRequest`` with the reason if it is gone.
    """
    if letter.invocation is not None and not _has_digested_inputs(letter.invocation):
        return letter.invocation
    try:
        recorded_invocation = (await find_record(bus, letter.inv)).invocation
    except NotFound:
        raise BadRequest(
            f"the record of {letter.inv} is gone, and its dead letter has digests only: "
            "set OMNIBUS_GATEWAY_DEADLETTERS=full to keep inputs as long as the letters"
        ) from None
    if _has_digested_inputs(recorded_invocation):
        raise BadRequest(
            f"the inputs of {letter.inv} were recorded as digests: set OMNIBUS_GATEWAY_RECORD=full, or "
            "OMNIBUS_GATEWAY_DEADLETTERS=full, to retry later failures"
        )
    return recorded_invocation


def _has_digested_inputs(invocation: Invocation) -> bool:
    return any(
        isinstance(value, dict) and (DIGEST in value) for node in invocation.nodes for value in node.inputs.values()
    )


async def delete_dead_letter(bus: Bus, letter: DeadLetter) -> None:
    """Delete ``letter`` from the stream."""
    await bus.purge_subject(DEADLETTERS, subjects.dead_letter_subject(letter.app, letter.inv))
