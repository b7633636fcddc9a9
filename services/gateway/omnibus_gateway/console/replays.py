"""Replays and forks of recorded invocations, from the console.

They are streams of the output of ``omnibus replay``.
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, Any

import msgspec

from omnibus import graph
from omnibus.bus import Bus, subjects
from omnibus.errors import BadRequest
from omnibus.graph import UNREADABLE, Invocation
from omnibus.recording import records
from omnibus.recording.steps import find_node, fork_invocation, start_headers

#: Query parameters that a replay accepts.
REPLAY_PARAMS = ("from", "path", "route")
#: Seconds of silence after which a replay times out.
REPLAY_IDLE_SECONDS = 120.0
#: Limit of the bytes of a fork's body, which may replace a long text.
MAX_BODY_BYTES = 1 << 20


class ForkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fork. ``node`` is a number or component, ``changes`` are by input or ``INPUT.KEY``."""

    node: int | str
    changes: dict[str, Any] = {}
    seed: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None


class ConsoleReplays:
    """Runs recorded invocations again over ``bus``."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def stream_replay(self, id: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """Yield the output of ``omnibus replay``: where it runs, then the answer and the comparison.

        ``from``, ``path`` and ``route`` of ``query`` are the headers of ``omnibus_gateway.replay.options``. Raises
        ``BadRequest`` for other parameters, and ``NotFound``.
        """
        headers = _replay_headers(query)
        record = await records.find_record(self._bus, id)
        async for part in self._run(record.invocation, headers):
            yield part

    async def stream_fork(self, id: str, body: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the output of ``omnibus fork`` for the JSON ``ForkRequest`` in ``body``.

        Stages before the changed one are replayed from stored outputs, if there are any. Raises ``BadRequest`` and
        ``NotFound``.
        """
        try:
            fork_request = msgspec.json.decode(body, type=ForkRequest)
        except UNREADABLE as error:
            raise BadRequest(f"invalid fork: {error}") from error
        record = await records.find_record(self._bus, id)
        node = find_node(record.invocation, str(fork_request.node))
        fork = fork_invocation(record.invocation, node, fork_request.changes, fork_request.seed)
        async for part in self._run(fork, start_headers(*record, node)):
            yield part

    async def _run(self, invocation: Invocation, headers: dict[str, str]) -> AsyncGenerator[bytes, None]:
        body = graph.encode_invocation(invocation)
        async for part in self._bus.request_stream(subjects.REPLAY, body, REPLAY_IDLE_SECONDS, headers or None):
            yield part


def _replay_headers(query: Mapping[str, str]) -> dict[str, str]:
    """Raises ``BadRequest`` for unknown parameters and values that cannot be headers."""
    headers = {name: value for name, value in query.items() if value}
    for name, value in headers.items():
        if name not in REPLAY_PARAMS or not (value.isascii() and value.isprintable()):
            raise BadRequest(
                f"a replay accepts only {', '.join(REPLAY_PARAMS)}, with printable ASCII values", param=name[:80]
            )
    return {f"Omnibus-{name}": value for name, value in headers.items()}
