"""Random orders of events between two nodes: no foreign bytes, no duplicate answers, no lost or doubled reads."""

import asyncio
import itertools
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from omnibus.tensors.arena import Arena
from omnibus.tensors.ledger import BlockOwner
from omnibus.tensors.protocol import PullRequest, SidecarFrame, Verb, encode_tag
from omnibus_sidecar.peers.incoming import Mirrors
from omnibus_sidecar.peers.outgoing import OutgoingReads
from omnibus_sidecar.request_handler import Desk
from omnibus_sidecar.settings import SidecarConfig
from tests.unit.sidecar.peers.wire import PeerWire

_ARENA_BYTES = 4096
_DEADLINE_SECONDS = 1000.0
_TAGS = ("i", "j")
_WHOLE, _HALF = "whole", "half"


class RecordingCaller:
    """A caller of a desk that records the answers."""

    def __init__(self, name: str) -> None:
        self.owner = BlockOwner(name)
        self.answers: dict[int, list[SidecarFrame | bytes]] = {}

    def reply(self, frame: SidecarFrame) -> None:
        self.answers.setdefault(frame.request, []).append(frame)

    def reply_bytes(self, frames: bytes) -> None:
        self.answers.setdefault(int.from_bytes(frames[4:8], "little"), []).append(frames)


@dataclass(eq=False)
class Tensor:
    """A block of A, all bytes of which are ``value``. ``unread`` counts its reads that have not begun."""

    frame: SidecarFrame
    nbytes: int
    value: int
    tag: str
    unread: int
    is_over: bool = False


@dataclass(eq=False)
class PendingRead:
    """A read at B: requested by ``number``, and open once there is a ``mirror``."""

    tensor: Tensor
    client: RecordingCaller
    number: int
    nbytes: int
    mirror: SidecarFrame | None = None
    offset: int = field(default=0)


class TwoNodes(RuleBasedStateMachine):
    """Node A with blocks and node B that pulls copies; ``free_early`` is the bug that this test must detect."""

    copies = True
    free_early = False

    @initialize()
    def start(self) -> None:
        self.directory = tempfile.mkdtemp(dir="/dev/shm")
        self.loop = asyncio.new_event_loop()
        self.a, self.arena_a = self._make_desk("a", 1 << 50)
        self.b, self.arena_b = self._make_desk("b", 1 << 51)
        self.wire = PeerWire(self.arena_a, self.arena_b, self.copies)
        free_callback = self.a.admit_waiters
        self.reads_a = self.wire.reads = OutgoingReads(self.a.ledger, b"k" * 32, free_callback)
        if self.free_early:
            self.reads_a.stop_sending = lambda lease: False  # type: ignore[method-assign]
            self.a.ledger.pin = lambda *_: True  # type: ignore[method-assign]
        mirrors_a = Mirrors(self.a, _ARENA_BYTES, self.wire.start_transfer, self.wire.send_over)
        self.a.connect_nodes(mirrors_a, self.reads_a, dict)
        self.mirrors = Mirrors(self.b, _ARENA_BYTES // 2, self.wire.start_transfer, self.wire.send_over)
        reads_b = OutgoingReads(self.b.ledger, b"b" * 32, self.b.admit_waiters)
        self.b.connect_nodes(self.mirrors, reads_b, dict)
        self.producer = RecordingCaller("producer")
        self.clients = [RecordingCaller("first"), RecordingCaller("second")]
        self.everybody = list(self.clients)
        self.numbers, self.values = itertools.count(1), itertools.cycle(range(1, 251))
        self.tensors: list[Tensor] = []
        self.asked: list[PendingRead] = []
        self.open: list[PendingRead] = []
        self.finished = Counter[str]()

    def _make_desk(self, name: str, boot: int) -> tuple[Desk, Arena]:
        arena = Arena.create(f"arena-{name}", _ARENA_BYTES, self.directory)
        config = SidecarConfig(node=name, socket="", directory=self.directory, size=_ARENA_BYTES)
        desk = Desk(config, arena, boot, self.loop)
        desk.allocator.add_backed(_ARENA_BYTES)
        return desk, arena

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            try:
                self._finish_all()
            finally:
                for desk in (self.a, self.b):
                    desk.close()
                for arena in (self.arena_a, self.arena_b):
                    arena.close()
                self.loop.close()
                shutil.rmtree(self.directory)

    # Clients

    @rule(nbytes=st.sampled_from([64, 400, 1000]), tag=st.sampled_from(_TAGS), readers=st.integers(1, 3))
    def put(self, nbytes: int, tag: str, readers: int) -> None:
        number = next(self.numbers)
        deadline = time.time() + _DEADLINE_SECONDS
        request = SidecarFrame(Verb.ALLOCATE, number, readers, 0, 0, nbytes, 0, deadline, 0.0, encode_tag(tag))
        self.a.serve_frame(self.producer, request)
        (answer,) = self.producer.answers.pop(number)
        assert isinstance(answer, SidecarFrame)
        if answer.verb == Verb.GRANTED:
            value = next(self.values)
            self.arena_a.bytes_at(answer.offset, nbytes)[:] = bytes([value]) * nbytes
            self.a.serve_frame(self.producer, answer._replace(verb=Verb.SEAL))
            self.tensors.append(Tensor(answer, nbytes, value, tag, readers))

    @precondition(lambda self: any(tensor.unread for tensor in self.tensors))
    @rule(data=st.data(), client=st.integers(0, 1), part=st.sampled_from([_WHOLE, _HALF]))
    def begin_read(self, data: st.DataObject, client: int, part: str) -> None:
        self._begin_read(data.draw(st.sampled_from([tensor for tensor in self.tensors if tensor.unread])), client, part)

    def _begin_read(self, tensor: Tensor, client: int, part: str) -> None:
        read = PendingRead(tensor, self.clients[client], next(self.numbers), tensor.nbytes // (1 + (part == _HALF)))
        tensor.unread -= 1
        self.asked.append(read)
        self.mirrors.pull(read.client, read.number, self._make_request(tensor, read.nbytes))
        self._collect_answers()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self._release_read(data.draw(st.sampled_from(self.open)))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        read = data.draw(st.sampled_from(self.asked))
        self.b.serve_frame(read.client, SidecarFrame(Verb.CANCEL, read.number))
        self._collect_answers()

    @rule(tag=st.sampled_from(_TAGS), at_a=st.booleans())
    def end(self, tag: str, at_a: bool) -> None:
        self._end_invocation(tag, at_a)

    @rule(client=st.integers(0, 1))
    def replace_client(self, client: int) -> None:
        """Kill a client; its reads are over."""
        dead = self.clients[client]
        self.open = [read for read in self.open if read.client is not dead]
        self.asked = [read for read in self.asked if read.client is not dead]
        self.b.remove_client(dead)
        self.clients[client] = RecordingCaller("later")
        self.everybody.append(self.clients[client])
        self._collect_answers()

    # Network

    @precondition(lambda self: self.wire.steps())
    @rule(data=st.data(), count=st.integers(1, 4))
    def go_on(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            if steps := self.wire.steps():
                steps[data.draw(st.integers(0, len(steps) - 1))]()
                self._collect_answers()

    @precondition(lambda self: self.wire.connections)
    @rule(data=st.data())
    def break_connection(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.wire.connections)).break_off()

    # Invariants

    @invariant()
    def readers_see_their_own_bytes(self) -> None:
        for read in getattr(self, "open", ()):
            assert read.mirror is not None
            mirror_bytes = bytes(self.arena_b.bytes_at(read.mirror.offset, read.nbytes))
            assert mirror_bytes == bytes([read.tensor.value]) * read.nbytes

    @invariant()
    def blocks_live_until_their_last_read(self) -> None:
        for tensor in getattr(self, "tensors", ()):
            if tensor.unread and not tensor.is_over and tensor.frame.block not in self.wire.ambiguous:
                assert self._find_lease(tensor) is not None

    @invariant()
    def nobody_is_answered_twice(self) -> None:
        for client in getattr(self, "everybody", ()):
            assert all(len(answers) == 1 for answers in client.answers.values())

    # Helpers

    def _find_lease(self, tensor: Tensor) -> object | None:
        return self.a.ledger.find_readable(tensor.frame.block, tensor.frame.generation)

    def _make_request(self, tensor: Tensor, stop: int) -> PullRequest:
        frame, deadline = tensor.frame, time.time() + _DEADLINE_SECONDS
        return PullRequest(
            "a", frame.block, frame.generation, frame.nbytes, tensor.nbytes, 0, stop, True, tensor.tag, deadline, 100.0
        )

    def _collect_answers(self) -> None:
        for read in list(self.asked):
            for answer in read.client.answers.get(read.number, ()):
                self.asked.remove(read)
                if isinstance(answer, SidecarFrame) and answer.verb == Verb.PULLED:
                    read.mirror = answer
                    self.open.append(read)
                elif isinstance(answer, bytes):  # it failed, and is expected again
                    read.tensor.unread += 1

    def _release_read(self, read: PendingRead) -> None:
        assert read.mirror is not None
        self.open.remove(read)
        self.b.serve_frame(read.client, read.mirror._replace(verb=Verb.RELEASE))

    def _end_invocation(self, tag: str, at_a: bool) -> None:
        if at_a:
            for tensor in self.tensors:
                tensor.is_over = tensor.is_over or tensor.tag == tag
            self.a.serve_frame(self.producer, SidecarFrame(Verb.END, text=encode_tag(tag)))
            return
        for tensor in self.tensors:  # the number of its ended reads is now unknown
            tensor.is_over = tensor.is_over or tensor.tag == tag
        self.open = [read for read in self.open if read.tensor.tag != tag]
        for client in self.clients:
            self.b.serve_frame(client, SidecarFrame(Verb.END, text=encode_tag(tag)))
        self._collect_answers()

    def _run_network(self) -> None:
        while steps := self.wire.steps():
            steps[0]()
            self._collect_answers()

    def _finish_all(self) -> None:
        """Finish all work: started reads end, and invocations free the rest."""
        self._run_network()
        for read in list(self.open):
            self._release_read(read)
        for tensor in self.tensors:
            for _ in range(tensor.unread):
                self.mirrors.decline(self._make_request(tensor, tensor.nbytes))
        self._run_network()
        if not self.asked and not self.open:
            for tensor in self.tensors:
                if not tensor.is_over and tensor.frame.block not in self.wire.ambiguous:
                    assert self._find_lease(tensor) is None, tensor
        for tag in _TAGS:
            for at_a in (True, False):
                self._end_invocation(tag, at_a)
        self._run_network()
        assert self.asked == []
        assert (self.a.ledger.list_leases(9), self.b.ledger.list_leases(9)) == ([], [])
        assert (len(self.mirrors), self.mirrors.nbytes) == (0, 0)


class TwoNodesWithPages(TwoNodes):
    """The same machine with B reading the memory of A directly."""

    copies = False


_SETTINGS = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize("nodes", [TwoNodes, TwoNodesWithPages])
def test_any_order_of_events_is_right(nodes: type[TwoNodes]):
    run_state_machine_as_test(nodes, settings=_SETTINGS)


@pytest.mark.nightly
@pytest.mark.parametrize("nodes", [TwoNodes, TwoNodesWithPages])
def test_many_more_orders_of_events_are_right(nodes: type[TwoNodes]):
    run_state_machine_as_test(nodes, settings=settings(_SETTINGS, max_examples=800, stateful_step_count=60))


class CarelessNodes(TwoNodes):
    free_early = True


class CarelessWithPages(TwoNodesWithPages):
    free_early = True


def end_in_the_middle(nodes: TwoNodes) -> None:
    """End an invocation after half of its tensor is sent. Another one reuses its memory."""
    nodes.put(nbytes=400, tag="i", readers=1)
    nodes._begin_read(nodes.tensors[0], 0, _WHOLE)
    for _ in range(2):
        nodes.wire.steps()[0]()
    nodes._end_invocation("i", at_a=True)
    nodes.put(nbytes=400, tag="j", readers=1)
    nodes._run_network()


@pytest.mark.parametrize(("right", "wrong"), [(TwoNodes, CarelessNodes), (TwoNodesWithPages, CarelessWithPages)])
def test_memory_that_is_freed_while_it_is_sent_would_be_noticed(right: type[TwoNodes], wrong: type[TwoNodes]):
    careful, careless = right(), wrong()
    try:
        for nodes in (careful, careless):
            nodes.start()
            end_in_the_middle(nodes)

        careful.readers_see_their_own_bytes()
        assert careful.open == []  # it received the loss of its tensor
        with pytest.raises(AssertionError):
            careless.readers_see_their_own_bytes()
    finally:
        careful.teardown()
        careless.open.clear()
        careless.teardown()
