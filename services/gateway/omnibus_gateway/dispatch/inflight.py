"""State of one invocation in flight: its nodes, their executors and their results.

A replay that begins mid-graph plays recorded outputs back to its nodes.
"""

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from omnibus.bus import Bus, messages, subjects
from omnibus.bus.messages import TENANT_HEADER, Chunk, Hop
from omnibus.bus.pull_log import PullLog
from omnibus.errors import Fatal, OmnibusError, StageUnavailable
from omnibus.graph import HANDLE, GraphNode, Invocation
from omnibus.recording.records import Moved
from omnibus.tensors.client import TensorClient
from omnibus.tracing import Span
from omnibus_gateway.dispatch.retention import (
    CHECKPOINT,
    CODES,
    UNRETAINED_OUTPUTS,
    Key,
    OutputCapture,
    OutputRecord,
    RecordedChunk,
)
from omnibus_gateway.dispatch.streams import Fetch, ResultStream
from omnibus_gateway.routing.executors import ExecutorEntry, ExecutorTable
from omnibus_gateway.routing.router import ExecutorRoute

#: Routes the invocation again, without the given executors: the same path rules, pins and graph.
Again = Callable[[frozenset[str]], ExecutorRoute]

_T = TypeVar("_T")

#: Output of a language model that its client reads.
TEXT = "text"
#: Characters of the reason for which an attempt was abandoned.
MAX_REASON_CHARS = 200
_HANDLE = f'"{HANDLE}"'.encode()


class InflightInvocation:
    """State of one invocation at its gateway. Owned by the dispatcher; read by the app."""

    def __init__(
        self,
        invocation: Invocation,
        work: Sequence[float],
        again: Again,
        fetch: Fetch,
        members: ExecutorTable,
        tapes: Mapping[tuple[int, str], OutputCapture] | None = None,
    ) -> None:
        self.invocation = invocation
        self.again = again
        self.tapes = tapes or {}  # captures of the outputs that nodes pass to each other
        self.streams = {key: ResultStream(*key, self._wrap_fetch(key, fetch)) for key in invocation.outputs}
        self.hops: dict[int, Hop] = {}
        #: Wasted computation by node and attempt: the option and its seconds.
        self.unfinished: dict[tuple[int, int], tuple[str, float]] = {}
        self._earlier_options: dict[int, tuple[str, ...]] = {}  # by attempt
        self.accepted: set[str] = set()
        self.lost: set[str] = set()  # executors that refused, were busy or died
        self.moves: list[Moved] = []  # abandoned attempts
        self.failed = -1  # the node that failed, if known
        self.failure: OmnibusError | None = None
        #: Components of executors that died holding it, the digests for which it is refused, and whether it must run
        #: alone: see ``omnibus_gateway.dispatch.failures``.
        self.died_with: list[frozenset[str]] = []
        self.culprit: frozenset[str] = frozenset()
        self.single = False
        self.mirrored = False  # it runs only for comparison, without a client
        self.span: Span | None = None  # None while traces are off
        self.tenant = ""  # its weight and name, as in ``TENANT_HEADER``; empty without tenants
        #: Executors that receive no messages, and the callback after all others received an attempt.
        self.absent: frozenset[str] = frozenset()
        self.on_sent: Callable[[InflightInvocation], None] | None = None
        self.records: dict[Key, OutputRecord] = {}  # of retained outputs
        #: The executor of each node, and its attempt.
        self.executors = list(invocation.route)
        self.attempts = dict.fromkeys(range(len(invocation.nodes)), invocation.attempt)
        #: Executors and attempts to which this gateway forwards the output of a node of an earlier attempt.
        self.forwards: dict[Key, list[tuple[str, int]]] = {}
        #: Machines on which it may have left tensors.
        self.nodes: set[str] = set()
        #: Chunks by output that wait for their tensors, and the tasks that pull them.
        self.arriving: dict[Key, deque[Chunk]] = {}
        self.pulls: set[asyncio.Task[None]] = set()
        self.pulled = False  # some of its tensors lie in this node's arena, too
        self.pull_log: PullLog | None = None  # the cost of these pulls
        self.over = False
        self.body = b""  # the invocation as it was sent
        self.on_settled: Callable[[], None] | None = None
        #: Called when all nodes have reported, or it has failed, for callers that read no output.
        self.on_quiet: Callable[[], None] | None = None
        #: Called once, as soon as no executor can reject it any more: see ``is_accepted``.
        self.on_taken: Callable[[], None] | None = None
        self.sent = 0.0  # when this attempt was sent, monotonic seconds
        self._work = work
        self._charged: dict[int, tuple[str, ExecutorEntry | None]] = {}
        self._left: defaultdict[str, int] = defaultdict(int)  # unfinished nodes by executor
        self._members = members

    @property
    def id(self) -> str:
        return self.invocation.id

    def _wrap_fetch(self, key: tuple[int, str], fetch: Fetch) -> Fetch:
        """Return ``fetch``, or a reader of the captured array, if any."""
        tape = self.tapes.get(key)
        return fetch if tape is None else lambda _: tape.last

    @property
    def headers(self) -> Mapping[str, str] | None:
        """The headers of its messages: its parent trace and its tenant."""
        headers = self.span.carrier if self.span is not None else None
        return {**(headers or {}), TENANT_HEADER: self.tenant} if self.tenant else headers

    @property
    def node_work(self) -> Sequence[float]:
        """Estimated work of each node, in tokens."""
        return self._work

    @property
    def is_accepted(self) -> bool:
        """True once every executor of the route has accepted it or finished."""
        return all(executor in self.accepted or not self._left[executor] for executor in self.invocation.route)

    def notify_when_accepted(self, notify: Callable[[], None]) -> None:
        """Call ``notify`` once no executor can reject this, possibly at once."""
        if self.is_accepted:
            notify()
        else:
            self.on_taken = notify

    def notify_accepted(self) -> None:
        """Notify the waiter: the executors accepted the route, or output has arrived."""
        if self.on_taken is not None:
            notify, self.on_taken = self.on_taken, None
            notify()

    def mark_accepted(self, executor: str) -> None:
        """Record that ``executor`` accepted this attempt."""
        self.accepted.add(executor)
        if self.on_taken is not None and self.is_accepted:
            self.notify_accepted()

    def charge_executors(self) -> None:
        """Add this invocation's work to the executors of its route."""
        for node, executor in enumerate(self.invocation.route):
            if not self.invocation.starts_node(node):
                continue
            member = self._members.get(executor)
            self._charged[node] = (executor, member)
            self._left[executor] += 1
            if member is not None:
                self.nodes.add(member.status.node)
                member.charge_work(self._work[node], first=self._left[executor] == 1)
                if self._left[executor] == 1:
                    member.drain.add_invocation(self.invocation.id)

    def finish_node(self, hop: Hop) -> None:
        """Record that a node finished, and remove its work from its executor."""
        self.hops[hop.node] = hop
        if hop.node in self._charged:
            self._discharge_node(hop.node, finished=True)
        if self.on_settled is not None and not self._charged:
            self.on_settled()
        if self.on_quiet is not None and not self._charged:
            self.on_quiet()

    def add_unfinished(self, hop: Hop) -> None:
        """Record the computation of a failed or stopped node; ``hop.attempt`` is negative."""
        attempt = ~hop.attempt
        options = self._earlier_options.get(attempt, self.invocation.options)
        if 0 <= hop.node < len(options):
            self.unfinished[hop.node, attempt] = options[hop.node], hop.computed

    def discharge_all(self) -> None:
        """Remove all remaining work from the executors."""
        for node in list(self._charged):
            self._discharge_node(node)

    def _discharge_node(self, node: int, finished: bool = False) -> None:
        executor, member = self._charged.pop(node)
        self._left[executor] -= 1
        if member is None:
            return
        member.discharge_work(self._work[node], last=not self._left[executor])
        if self._left[executor]:
            return
        if finished:
            member.drain.finish_invocation(self.invocation.id, self._service_seconds(executor))
        else:
            member.drain.drop_invocation(self.invocation.id)

    def _service_seconds(self, executor: str) -> float:
        """Return the seconds of this invocation in the engines of ``executor``; 0 if unreported."""
        hops = [hop for hop in self.hops.values() if hop.executor == executor and hop.began]
        return max(hop.end for hop in hops) - min(hop.began for hop in hops) if hops else 0.0

    @property
    def all_reported(self) -> bool:
        """True if every node has reported that it finished."""
        return len(self.hops) == len(self.invocation.nodes)

    def waits_for(self, executor: str) -> bool:
        """Return True if a node on ``executor`` is unfinished."""
        return self._left[executor] > 0

    def has_alternative(self, executor: str) -> bool:
        """Return True if another executor can take the work; the last one is not abandoned."""
        try:
            self.again(frozenset({*self.lost, executor}))
        except OmnibusError:
            return False
        return True

    def gone_error(self, executor: str) -> StageUnavailable:
        """Return the error for a dead ``executor``, with its stage."""
        nodes, route = self.invocation.nodes, self.executors
        stage = next((node.component for node, each in zip(nodes, route, strict=True) if each == executor), "")
        return StageUnavailable(f"executor {executor} of stage {stage!r} is gone", stage=stage, executor=executor)

    @property
    def may_hold_tensors(self) -> bool:
        """True if the arena may hold tensors of this invocation.

        These are inputs, outputs of its nodes, or tensors of an earlier attempt. A single node with only small inputs
        puts nothing there. Other nodes report their bytes.
        """
        invocation = self.invocation
        if invocation.attempt or self.pulled or not self.body or _HANDLE in self.body:
            return True
        if len(invocation.nodes) == 1:
            return False
        return not self.all_reported or any(hop.nbytes for hop in self.hops.values())

    def record_failed_attempt(self, reason: str, error: OmnibusError) -> None:
        """Record the reason for which this attempt is abandoned."""
        where = self.invocation.attempt
        self.moves.append(Moved(where, time.time(), reason, error.executor, error.message[:MAX_REASON_CHARS]))

    def is_current(self, node: int, attempt: int) -> bool:
        """Return True if ``attempt`` is the current one of ``node``."""
        return self.attempts.get(node) == attempt

    def holds_nodes(self, executor: str, attempt: int) -> bool:
        """Return True if ``executor`` runs current nodes in ``attempt``."""
        return (executor, attempt) in zip(self.executors, self.attempts.values(), strict=True)

    def with_places(self, invocation: Invocation, home: str) -> Invocation:
        """Return ``invocation`` with its machines, unless all run on ``home``."""
        if self.nodes <= {home}:
            return invocation
        members = [self._members.get(executor) for executor in invocation.route]
        places = tuple([member.status.node if member is not None else "" for member in members])
        return msgspec.structs.replace(invocation, places=places, home=home, sent=time.time())

    def executors_on(self, node: str) -> frozenset[str]:
        """Return its known executors on ``node``, a machine."""
        members = ((executor, self._members.get(executor)) for executor in self.executors)
        return frozenset(executor for executor, member in members if member and member.status.node == node)

    def unfinished_nodes(self, executor: str) -> frozenset[int]:
        """Return the nodes of ``executor`` that have not reported that they finished."""
        return frozenset(node for node, by in enumerate(self.executors) if by == executor and node not in self.hops)

    def begin_attempt(self, route: ExecutorRoute, again: frozenset[int], *, resumes: bool = True) -> None:
        """Begin the next attempt on ``route`` for the nodes ``again``; others continue, or are done.

        With ``resumes`` they begin after the last output that the client received.
        """
        self._earlier_options[self.invocation.attempt] = self.invocation.options
        attempt, left = self.invocation.attempt + 1, tuple(self._resume_states(again) if resumes else ())
        for node in again:
            if node in self._charged:
                self._discharge_node(node)
            self.hops.pop(node, None)
            self.executors[node], self.attempts[node] = route.executors[node], attempt
        going_on = {by for node, by in enumerate(self.executors) if node not in again}
        self.accepted &= going_on - {self.executors[node] for node in again}
        self.failed = -1
        whole = len(again) == len(self.attempts)
        sizes = {f"{node}.{output}": _resumed_size(each) for node, output, each in left}
        self.moves[-1] = msgspec.structs.replace(
            self.moves[-1], again=() if whole else tuple(sorted(again)), resumed=sizes
        )
        self._work = _merge_at(self._work, route.work, again)
        self.invocation = msgspec.structs.replace(
            self.invocation,
            path=route.path,
            options=_merge_at(self.invocation.options, route.options, again),
            route=tuple(self.executors),
            attempt=attempt,
            attempts=() if whole else tuple(self.attempts.values()),
            resumes=left,
        )
        for key, stream in self.streams.items():
            if key[0] in again:
                stream.restart()
        for tape in self.tapes.values():
            tape.restart()

    def _resume_states(self, again: frozenset[int]) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """Yield the initial state of the nodes ``again``: the client's progress, checkpoints and codes.

        A complete output resumes only if it is text: other nodes may need the data of its tokens.
        """
        for (node, output), stream in self.streams.items():
            if node in again and (output == TEXT or not stream.ended) and (progress := stream.progress()):
                for each in _with_cache_source(self.invocation.nodes, node):
                    yield each, output, progress
        for (node, output), record in self.records.items():
            if node in again and output == CHECKPOINT and record.intact and record.chunks:
                last = record.chunks[-1]
                yield node, output, {**last.data, HANDLE: msgspec.to_builtins(last.handle)}
            elif node in again and output == CODES and (codes := record.joined_list(CODES)):
                yield node, output, {CODES: codes}

    def read_codes(self, begin: int) -> list[Any]:
        """Return the codes (or frames) of the answer's talker from ``begin`` on.

        Empty if they are not retained.
        """
        record = next((record for (_, output), record in self.records.items() if output == CODES), None)
        return record.joined_list(CODES)[begin:] if record is not None else []

    def fail(self, error: OmnibusError) -> None:
        if self.failure is None:
            self.failure = error
            for stream in self.streams.values():
                stream.fail(error)
            if self.on_quiet is not None:
                self.on_quiet()


def token_resume_states(
    nodes: Sequence[GraphNode], outputs: Sequence[Key], tokens: Sequence[int]
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the state from which an answer's language model resumes after ``tokens``."""
    text_nodes = [node for node, output in outputs if output == TEXT]
    if tokens and len(text_nodes) == 1:
        for each in _with_cache_source(nodes, text_nodes[0]):
            yield each, TEXT, {"ids": list(tokens)}


def code_resume_states(nodes: Sequence[GraphNode], codes: Sequence[Any]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the state from which the answer's talker resumes after ``codes``."""
    talkers = {source for node in nodes for source, name in node.uses if name == CODES}
    if codes and len(talkers) == 1:
        yield talkers.pop(), CODES, {CODES: list(codes)}


def _with_cache_source(nodes: Sequence[GraphNode], node: int) -> tuple[int, ...]:
    """Return ``node`` and the prefill node of its cache: both begin after the same tokens."""
    return (node, *(source for source, name in nodes[node].uses if name in UNRETAINED_OUTPUTS))


def _merge_at(old: Sequence[_T], new: Sequence[_T], at: frozenset[int]) -> tuple[_T, ...]:
    """Return ``old`` with the values of ``new`` in the places ``at``."""
    return tuple(new[index] if index in at else each for index, each in enumerate(old))


def _resumed_size(left: Mapping[str, Any]) -> int:
    """Return the amount that a node need not recompute: the most rows, steps or list elements."""
    counts = [left.get("rows", 0), left.get("step", 0), *(len(each) for each in left.values() if type(each) is list)]
    return int(max(counts))


log = logging.getLogger(__name__)

#: Seconds that played tensors outlive the deadline.
DEADLINE_GRACE_SECONDS = 10.0

#: By node and output.
Tapes = Mapping[tuple[int, str], list[RecordedChunk]]


class OutputPlayer:
    """Replaces the executor ``name`` of the nodes before ``start`` in every attempt."""

    def __init__(self, bus: Bus, tensors: TensorClient, limit: int, name: str, start: int, tapes: Tapes) -> None:
        self._bus = bus
        self._tensors = tensors
        self._limit = limit
        self._start = start
        self._tapes = tapes
        self._task: asyncio.Task[None] | None = None
        self.name = name

    def prepare_attempts(self, running: InflightInvocation) -> None:
        """Play in each attempt of ``running``, which must not be sent yet."""
        if self._start:
            running.absent = frozenset({self.name})
            running.on_sent = self._on_attempt_sent

    def _on_attempt_sent(self, running: InflightInvocation) -> None:
        """Finish the recorded nodes of an attempt, and play their outputs."""
        self.stop()
        now = time.time()
        for node in range(self._start):
            running.finish_node(Hop(running.id, node, self.name, now, now, now, now, running.invocation.attempt))
        self._task = asyncio.get_running_loop().create_task(self._play_outputs(running))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _play_outputs(self, running: InflightInvocation) -> None:
        try:
            for (node, output), pieces in self._tapes.items():
                for seq, piece in enumerate(pieces):
                    await self._send_chunk(running, node, output, seq, piece)
        except OmnibusError as error:
            running.fail(error)
        except Exception:  # the client must not wait forever
            log.exception("%s: a recorded output could not be played", running.id)
            running.fail(Fatal("a recorded output could not be played: see the gateway's log"))

    async def _send_chunk(
        self, running: InflightInvocation, node: int, output: str, seq: int, piece: RecordedChunk
    ) -> None:
        invocation = running.invocation
        readers = [index for index in invocation.find_consumers(node).get(output, ()) if index >= self._start]
        handle = None
        if piece.array is not None:
            handle = await self._tensors.put(
                piece.array,
                invocation=invocation.id,
                deadline=invocation.deadline + DEADLINE_GRACE_SECONDS,
                readers=len(readers),
            )
        chunk = Chunk(
            inv=invocation.id,
            node=node,
            output=output,
            seq=seq,
            attempt=invocation.attempt,
            data=piece.data,
            handle=handle,
            last=piece.last,
            empty=piece.empty,
        )
        for frame in messages.join_frames([messages.encode(chunk)], self._limit):
            for executor in dict.fromkeys(invocation.route[index] for index in readers):
                self._bus.publish(subjects.edge_subject(executor), frame)
