"""Pulls between two nodes' bookkeeping over a simulated network. There are no sockets and no clock.

A test schedules each step. A connection carries copies, or, as with UCX and readers of earlier builds, pages. With
pages B sees the memory at the time of its read, and waits for a confirmation.
"""

from collections import deque
from collections.abc import Callable

from omnibus.errors import NodeUnreachable
from omnibus.tensors.arena import Arena
from omnibus.tensors.ledger import BlockOwner
from omnibus.tensors.peer_protocol import PeerFrame, PullStatus
from omnibus_sidecar.peers.incoming import MirrorTransfer, TransferDone
from omnibus_sidecar.peers.outgoing import OutgoingReads

Step = Callable[[], None]
_ATTEMPTS = 2


class PeerWire:
    """All connections from B to A. ``steps`` are the possible next events, any of which may be chosen."""

    def __init__(self, source: Arena, target: Arena, copies: bool) -> None:
        self.source = source
        self.target = target
        self.copies = copies
        self.connections: list[Connection] = []
        self.reads: OutgoingReads | None = None
        #: Blocks with an unknown number of ended reads after a broken connection.
        self.ambiguous: set[int] = set()
        self._control: deque[Step] = deque()

    def start_transfer(self, transfer: MirrorTransfer, on_done: TransferDone) -> Step:
        """See ``StartTransfer``."""
        connection = Connection(self, transfer, on_done)
        self.connections.append(connection)
        return connection.cancel

    def send_over(self, node: str, over: PeerFrame) -> None:
        assert self.reads is not None
        reads = self.reads
        self._control.append(lambda: reads.end_reads(over))

    def steps(self) -> list[Step]:
        next_steps = [step for connection in self.connections for step in connection.steps()]
        return [*next_steps, self._run_control] if self._control else next_steps

    def _run_control(self) -> None:
        self._control.popleft()()


class Connection:
    """One transfer and its retry. Each end works sequentially; an abort can occur in between."""

    def __init__(self, wire: PeerWire, transfer: MirrorTransfer, on_done: TransferDone) -> None:
        self._wire = wire
        self._transfer = transfer
        self._done = on_done
        self._attempt = 0
        self._over = False  # for B, which reads and writes nothing more
        self._aborts: deque[Step] = deque()
        self._begin_attempt()

    def _begin_attempt(self) -> None:
        self._attempt += 1
        self._at = self._sent = 0
        self._offset = 0
        self._sending = False  # A holds the block
        self._owner = BlockOwner("peer:b")
        self._source: deque[Step] = deque([self._answer_get])
        self._target: deque[Step] = deque()

    def steps(self) -> list[Step]:
        """Return the possible next steps, one per end."""
        return [lambda queue=queue: queue.popleft()() for queue in (self._aborts, self._source, self._target) if queue]  # type: ignore[misc]

    def cancel(self) -> None:
        """Cancel the transfer at B."""
        if not self._over:
            self._aborts.append(self._stop_target)

    def break_off(self) -> None:
        """Lose the connection."""
        if self._over and self._sending:  # DONE is on its way
            self._wire.ambiguous.add(self._transfer.get.block)
            self._source = deque([self._close_source])
        elif not self._over:
            self._target.clear()
            self._target.append(self._on_reset)
            self._source.clear()
            self._source.append(self._close_source)

    def _answer_get(self) -> None:
        assert self._wire.reads is not None
        abort = lambda: self._aborts.append(self._abort_source)  # noqa: E731
        grant = self._wire.reads.begin_read(self._owner, self._transfer.get, abort)
        if grant.status == PullStatus.OK:
            self._sending, self._offset = True, grant.offset
            if self._wire.copies:
                self._source.append(self._send_copy)
            else:
                self._target.append(self._read_pages)
        else:
            self._target.append(lambda: self._finish_transfer(grant.status))

    def _send_copy(self) -> None:
        piece = self._next_half(self._sent)
        self._sent += len(piece)
        self._target.append(lambda: self._receive_piece(piece))
        if self._sent < self._transfer.get.nbytes:
            self._source.append(self._send_copy)

    def _read_pages(self) -> None:
        self._receive_piece(self._next_half(self._at))
        if not self._over and self._at < self._transfer.get.nbytes:
            self._target.append(self._read_pages)

    def _next_half(self, at: int) -> bytes:
        nbytes = self._transfer.get.nbytes
        return bytes(self._wire.source.bytes_at(self._offset + at, min(nbytes - at, max(nbytes // 2, 1))))

    def _receive_piece(self, piece: bytes) -> None:
        if self._over:
            return
        self._wire.target.bytes_at(self._transfer.offset + self._at, len(piece))[:] = piece
        self._at += len(piece)
        if self._at < self._transfer.get.nbytes:
            return
        self._source.append(self._confirm_read)
        if self._wire.copies:
            self._finish_transfer(PullStatus.OK)

    def _confirm_read(self) -> None:
        assert self._wire.reads is not None
        self._sending = False
        self._wire.reads.finish_read(self._owner, self._transfer.get, self._transfer.reads)
        if not self._wire.copies:
            self._target.append(lambda: self._finish_transfer(PullStatus.OK))

    def _abort_source(self) -> None:
        if self._sending:
            self._source.clear()
            self._close_source()
            self._note_ambiguity()
            self._target.append(self._on_reset)  # after what the socket of B holds

    def _close_source(self) -> None:
        assert self._wire.reads is not None
        self._sending = False
        self._wire.reads.abandon_read(self._owner)

    def _stop_target(self) -> None:
        if not self._over:
            self._over = True
            self._note_ambiguity()
            self._target.clear()
            self._source.append(self._close_source)
            self._done(None, None)

    def _on_reset(self) -> None:
        if self._over:
            return
        self._note_ambiguity()
        self._target.clear()
        self._source.append(self._close_source)
        if self._attempt < _ATTEMPTS:
            while self._source:  # the first connection ends without help
                self._source.popleft()()
            self._begin_attempt()
        else:
            self._over = True
            self._done(None, NodeUnreachable("the connection broke", node="a"))

    def _note_ambiguity(self) -> None:
        if self._at == self._transfer.get.nbytes:  # DONE is on its way, or was read
            self._wire.ambiguous.add(self._transfer.get.block)

    def _finish_transfer(self, status: PullStatus) -> None:
        if not self._over:
            self._over = True
            self._done(status, None)
