"""Segments that a worker submits to be run. It executes an app's code, so nothing that it says is trusted."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from omnibus.app import protocol
from omnibus.app.array_codec import pack
from omnibus.errors import Fatal, OmnibusError, ProtocolError
from omnibus.graph import HANDLE, Node, digest
from omnibus.task import Segment
from services.gateway.apps.output_buffer import Outgoing
from services.gateway.apps.worker_process import Process
from services.gateway.dispatch.streams import Incoming

log = logging.getLogger(__name__)

#: Tokens that one call may be expected to cost, and equal calls before it.
WORK, SALT = 10_000_000, 1_000_000
#: Segments that are looked at; a run takes fewer.
STEPS = 4096
#: Outputs, and choices, of one segment; characters of a pin.
OUTPUTS, CHOICES, PIN = 4096, 4096, 256

_encode = msgspec.json.Encoder(order="sorted").encode


class Runs(Protocol):
    """Part of ``services.gateway.request.request.Run`` that a request in a worker needs."""

    @property
    def id(self) -> str: ...
    @property
    def deadline(self) -> float: ...
    async def submit(self, segment: Segment, step: int) -> Mapping[tuple[int, str], Any]: ...
    def fail(self, error: OmnibusError) -> None: ...
    def end(self, status: str) -> None: ...


class Segments:
    """The graphs of request ``id`` of ``process``, and their outputs, as far as the worker asks for them."""

    def __init__(self, process: Process, id: int, run: Runs, issued: frozenset[bytes]) -> None:
        self._process = process
        self._id = id
        self._run = run
        self._issued = issued
        self._steps: set[int] = set()
        self._outputs: dict[tuple[int, int, str], Outgoing] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, message: protocol.Submit) -> None:
        """Run a segment; the worker is told. Raises ``ProtocolError`` when it was there before."""
        if message.step in self._steps or not 0 <= message.step < STEPS:
            raise ProtocolError(f"segment {message.step} comes twice, or after {STEPS} others")
        self._steps.add(message.step)
        self._begin(self._submit(message))

    def read(self, message: protocol.Read) -> None:
        """Send the next items of an output. Raises ``ProtocolError`` when they are not the worker's to read."""
        output = self._outputs.get((message.step, message.node, message.output))
        if output is None or output.busy:
            raise ProtocolError(f"{message.output[:80]!r} of call {message.node} cannot be read now")
        output.busy = output.begun = True
        self._begin(self._read(message, output))

    def hand(self, place: tuple[int, int, str]) -> Incoming:
        """The output at ``place`` for another reader. Raises ``ProtocolError`` when the worker has read of it."""
        output = self._outputs.pop(place, None)
        if output is None or output.begun or not isinstance(output.source, Incoming):
            raise ProtocolError(f"the output {place} cannot be handed on")
        return output.source

    def close(self) -> None:
        """Nothing is submitted or read any more."""
        for task in self._tasks:
            task.cancel()

    async def _submit(self, message: protocol.Submit) -> None:
        try:
            check(message.segment, self._issued)
            sources = await self._run.submit(message.segment, message.step)
        except Exception as error:  # noqa: BLE001 - one request's boundary: whatever it is, the app gets it as data
            self._process.send(protocol.Refused(self._id, message.step, self._typed(error).problem()))
            return
        for (node, output), source in sources.items():
            self._outputs[message.step, node, output] = Outgoing(source)
        self._process.send(protocol.Submitted(self._id, message.step, self._run.id))

    async def _read(self, message: protocol.Read, output: Outgoing) -> None:
        place = (message.id, message.step, message.node, message.output)
        try:
            items = await output.next()
            output.busy = False
            self._process.send(protocol.Items(*place, pack(items), not items))
        except Exception as error:  # noqa: BLE001 - as above
            self._process.send(protocol.Items(*place, (), True, self._typed(error).problem()))
        await self._process.drain()

    def _typed(self, error: Exception) -> OmnibusError:
        if isinstance(error, OmnibusError):
            return error
        log.error("%s: app %s", self._run.id, self._process.name, exc_info=error)
        return Fatal("internal error: the gateway's log has more")

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


# Checks


def literals(value: Any) -> Iterator[bytes]:
    """Every literal in ``value`` that holds a handle, in a form that can be compared."""
    if isinstance(value, dict):
        if HANDLE in value:
            yield _encode(value)
        for element in value.values():
            yield from literals(element)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from literals(element)


def check(segment: Segment, issued: frozenset[bytes]) -> None:
    """Raise ``ProtocolError`` unless ``segment`` is one that record could have made in this request.

    ``issued`` are its literals with handles, whole: a handle with another content hash beside it would put
    one client's picture into a cache under the hash of another's.
    """
    count = len(segment.nodes)
    if not count or any(len(each) not in (0, count) for each in (segment.work, segment.pins)):
        raise ProtocolError(f"a segment of {count} calls with {len(segment.work)} loads and {len(segment.pins)} pins")
    for node in segment.nodes:
        _check_node(node, issued)
    if not all(0 <= node < count for node, _ in segment.outputs) or len(segment.outputs) > OUTPUTS:
        raise ProtocolError(f"a segment of {count} calls asks for {len(segment.outputs)} outputs of calls it has not")
    if (
        not _between(segment.work, WORK)
        or len(segment.choices) > CHOICES
        or any(len(pin) > PIN for pin in segment.pins)
    ):
        raise ProtocolError(f"a segment's loads, pins or choices are out of bounds (a load is at most {WORK})")


def _check_node(node: Node, issued: frozenset[bytes]) -> None:
    if not issued.issuperset(literals(node.inputs)):
        raise ProtocolError(f"a call of {node.task} names media that this request was not given")
    if node.digest != digest(node.task, node.inputs) or not _between((node.salt,), SALT):
        raise ProtocolError(f"a call of {node.task} is not what its digest says")


def _between(numbers: Iterable[int], most: int) -> bool:
    return all(0 <= number <= most for number in numbers)
