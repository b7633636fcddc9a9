"""Segments that a worker submits. It executes an app's code, so every message is validated.

Files that an app puts into the arena for one request: see ``omnibus.task.Media``.

Outputs between a worker and its client, in both directions.

The worker reads outputs of nodes, and the client reads outputs of the worker.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Set
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import msgspec
import numpy as np

from omnibus.app import protocol
from omnibus.app.protocol import CHAT, pack_items
from omnibus.app.routes import EMBEDDINGS, SPEECH, TRANSCRIPTIONS
from omnibus.errors import AppFailed, BadMedia, OmnibusError, ProtocolError, TooLarge
from omnibus.graph import HANDLE, UNREADABLE, GraphNode, call_digest
from omnibus.task import Segment, Source
from omnibus.task.library import TranscriptSegment, TranscriptWord
from omnibus.tensors.handle import Item
from omnibus_gateway.apps.worker_process import WorkerProcess
from omnibus_gateway.core import ItemStream
from omnibus_gateway.media.inspect import DEFAULT_LIMITS, MediaInfo, accepted_text, inspect_media, sniff_content
from omnibus_gateway.openai.errors import client_error

#: Maximum bytes of arrays in one message to a worker; a larger array gets its own message.
MAX_BATCH_BYTES = 16 << 20


class WorkerOutputReader:
    """Output of a node: the worker reads it, or passes it to the client unread."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.begun = False  # the worker has begun to read it
        self.busy = False  # the worker waits for it
        self._rest: list[Item] = []

    @property
    def is_exhausted(self) -> bool:
        """True if the worker has certainly read everything."""
        return not self._rest and isinstance(self.source, ItemStream) and self.source.is_exhausted

    async def next_items(self) -> list[Item]:
        """Return the next items for one message; empty after the last. Raises the error of the output."""
        items, self._rest = self._rest or await self.source.next_items(), []
        nbytes = 0
        for index, item in enumerate(items):
            nbytes += item.array.nbytes if item.array is not None else 0
            if nbytes > MAX_BATCH_BYTES and index:
                self._rest = items[index:]
                return items[:index]
        return items


class _TextItem(msgspec.Struct, forbid_unknown_fields=True):
    text: str = ""
    ids: list[int] = []
    reasoning: str = ""
    calls: str = ""
    logprobs: dict[str, Any] = {}
    finish_reason: Literal["", "stop", "length", "content_filter", "tool_calls", "function_call"] = ""
    usage: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}


class _AudioItem(msgspec.Struct, forbid_unknown_fields=True):
    rate: Annotated[int, msgspec.Meta(ge=1000, le=768_000)]


class _TranscriptItem(msgspec.Struct, forbid_unknown_fields=True):
    text: str = ""
    segments: list[TranscriptSegment] = []
    words: list[TranscriptWord] = []
    language: str = ""
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    finish_reason: Literal["", "stop", "length"] = ""
    usage: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}


class _NumberItem(msgspec.Struct, forbid_unknown_fields=True):
    value: Annotated[int, msgspec.Meta(ge=0)]


class _BareItem(msgspec.Struct, forbid_unknown_fields=True):
    pass


class _OutputKind(NamedTuple):
    """Items of an output: the type of their data, and the dimensions of their float32 array, 0 without one."""

    data: type[msgspec.Struct]
    dimensions: int = 0


_AUDIO = _OutputKind(_AudioItem, 1)
#: Outputs by kind of request.
_KINDS: dict[str, dict[str, _OutputKind]] = {
    CHAT: {"text": _OutputKind(_TextItem), "audio": _AUDIO},
    TRANSCRIPTIONS: {"text": _OutputKind(_TranscriptItem)},
    SPEECH: {"audio": _AUDIO},
    EMBEDDINGS: {"embedding": _OutputKind(_BareItem, 2), "tokens": _OutputKind(_NumberItem)},
}


class AppOutputStream(ItemStream):
    """Output of a request of ``kind`` that the app makes itself. ``took`` is called with the bytes read."""

    def __init__(self, app: str, kind: str, name: str, took: Callable[[int], None]) -> None:
        super().__init__()
        self._app = app
        self._name = name
        self._kind = _KINDS[kind][name]
        self._took = took
        self._nbytes = 0

    def add_items(self, items: list[Item], nbytes: int) -> None:
        """Add the items of one message. Invalid items make the output fail."""
        self._nbytes += nbytes
        try:
            for item in items:
                self._check_item(item)
                self.add_item(item)
        except OmnibusError as error:
            self.fail(error)
        self.wake_reader()

    def take_ready(self) -> list[Item]:
        items = super().take_ready()
        nbytes, self._nbytes = self._nbytes, 0
        if nbytes:
            self._took(nbytes)
        return items

    def _check_item(self, item: Item) -> None:
        try:
            msgspec.convert(item.data, self._kind.data)
        except msgspec.ValidationError as error:
            raise AppFailed(f"the app {self._app} returned invalid {self._name}: {error}") from error
        dimensions, array = self._kind.dimensions, item.array
        if (array.ndim if array is not None else 0) != dimensions or (array is not None and array.dtype != np.float32):
            expected = f"a float32 array of {dimensions} dimensions" if dimensions else "no array"
            raise AppFailed(f"the app {self._app} returned invalid {self._name}: it must have {expected}")


def output_names(kind: str, body: bytes) -> list[str]:
    """Return the outputs that the answer to a request of ``kind`` names. Raises ``ProtocolError``."""
    try:
        names = msgspec.json.decode(body, type=list[str])
    except UNREADABLE as error:
        raise ProtocolError(f"the answer of {kind} names no outputs: {error}") from error
    if len(set(names)) != len(names) or not set(names) <= _KINDS[kind].keys():
        raise ProtocolError(f"the answer of {kind} must name {', '.join(_KINDS[kind])}, not {', '.join(names)[:80]!r}")
    return names


def check_json_line(body: bytes) -> bytes:
    """Return ``body`` if it is JSON on one line. Raises ``ProtocolError``."""
    try:
        body.decode()
        msgspec.json.decode(body, type=msgspec.Raw)
    except UNREADABLE as error:
        raise ProtocolError(f"the answer is not valid JSON: {error}") from error
    if b"\n" in body or b"\r" in body:
        raise ProtocolError("an answer has several lines: it would break the stream that carries it")
    return body


_MODALITIES = frozenset({"image", "video", "audio"})
#: Bytes up to which a file is inspected in the event loop; larger ones are hashed in a thread.
_MAX_INLINE_BYTES = 1 << 20


class FilePlacer(Protocol):
    """Interface of a run, such as ``omnibus_gateway.request.request.ClientRequest``, that places files."""

    async def place_input(self, data: bytes, about: tuple[str, str, str]) -> dict[str, Any]: ...


class PlacedMedia:
    """Files of one request of an app; the limits of client requests apply."""

    def __init__(self, run: FilePlacer) -> None:
        self._run = run
        self._count = 0
        self._nbytes = 0

    async def place(self, message: protocol.PlaceMedia) -> dict[str, Any]:
        """Put a file into the arena until the request ends; return its literal for calls.

        Raises ``BadMedia``, ``TooLarge``, and the errors of the arena.
        """
        self._count_file(len(message.data))
        modality = message.modality or sniff_content(message.data).partition("/")[0]
        if modality not in _MODALITIES:
            accepted_formats = " ".join(map(accepted_text, sorted(_MODALITIES)))
            raise BadMedia(f"The file is empty or in an unknown format. {accepted_formats}", param="media")
        info = await _inspect_file(message.data, modality)
        return await self._run.place_input(message.data, (info.modality, info.mime, info.sha256))

    def _count_file(self, nbytes: int) -> None:
        self._count += 1
        self._nbytes += nbytes
        limits = DEFAULT_LIMITS
        if self._count > limits.items or self._nbytes > limits.request_bytes:
            raise TooLarge(
                f"an app may place at most {limits.items} files and {limits.request_bytes} bytes in one request",
                param="media",
            )


async def _inspect_file(data: bytes, modality: str) -> MediaInfo:
    if len(data) <= _MAX_INLINE_BYTES:
        return inspect_media(data, modality, param="media")
    return await asyncio.to_thread(inspect_media, data, modality, param="media")


#: Maximum expected cost of one call in tokens, and maximum number of equal calls before it.
MAX_WORK_TOKENS, MAX_SALT = 10_000_000, 1_000_000
#: Maximum number of segments; a run accepts fewer.
MAX_SEGMENTS = 4096
#: Maximum outputs and choices of one segment, and characters of a pin.
MAX_OUTPUTS, MAX_CHOICES, MAX_PIN_CHARS = 4096, 4096, 256

_encode = msgspec.json.Encoder(order="sorted").encode


class SegmentRunner(Protocol):
    """Interface of runs of apps, such as ``omnibus_gateway.request.request.ClientRequest``."""

    @property
    def id(self) -> str: ...
    @property
    def deadline(self) -> float: ...
    @property
    def logs_calls(self) -> bool: ...
    async def submit(self, segment: Segment, step: int) -> Mapping[tuple[int, str], Any]: ...
    async def place_input(self, data: bytes, about: tuple[str, str, str]) -> dict[str, Any]: ...
    def fail(self, error: OmnibusError) -> None: ...
    def end(self, status: str) -> None: ...


class SegmentSubmissions:
    """Graphs of request ``id``, and their outputs that the worker reads."""

    def __init__(self, process: WorkerProcess, id: int, run: SegmentRunner, issued_literals: frozenset[bytes]) -> None:
        self._process = process
        self._id = id
        self._run = run
        self._issued = set(issued_literals)
        self._media = PlacedMedia(run)
        self._placing: set[int] = set()
        self._steps: set[int] = set()
        self._outputs: dict[tuple[int, int, str], WorkerOutputReader] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, message: protocol.Submit) -> None:
        """Run a segment, and report it to the worker. Raises ``ProtocolError`` for a duplicate."""
        if message.step in self._steps or not 0 <= message.step < MAX_SEGMENTS:
            raise ProtocolError(f"segment {message.step} comes twice, or after {MAX_SEGMENTS} others")
        self._steps.add(message.step)
        self._start_task(self._run_segment(message))

    def place_media(self, message: protocol.PlaceMedia) -> None:
        """Place a file, and send its literal to the worker. Raises ``ProtocolError`` for a duplicate number."""
        if message.number in self._placing:
            raise ProtocolError(f"file {message.number} comes twice")
        self._placing.add(message.number)
        self._start_task(self._place_file(message))

    def read_output(self, message: protocol.Read) -> None:
        """Send the next items of an output. Raises ``ProtocolError`` if the worker may not read them."""
        output = self._outputs.get((message.step, message.node, message.output))
        if output is None or output.busy:
            raise ProtocolError(f"{message.output[:80]!r} of call {message.node} cannot be read now")
        output.busy = output.begun = True
        self._start_task(self._send_items(message, output))

    def detach_output(self, place: tuple[int, int, str]) -> ItemStream:
        """Return the output at ``place`` for another reader. Raises ``ProtocolError`` if the worker has read it."""
        output = self._outputs.pop(place, None)
        if output is None or output.begun or not isinstance(output.source, ItemStream):
            raise ProtocolError(f"the output {place} cannot be handed on")
        return output.source

    def close(self) -> None:
        """Cancel all submissions and reads."""
        for task in self._tasks:
            task.cancel()

    async def _run_segment(self, message: protocol.Submit) -> None:
        try:
            check_segment(message.segment, self._issued)
            sources = await self._run.submit(message.segment, message.step)
        except Exception as error:  # noqa: BLE001 - boundary of a request: the app gets every error as data
            self._process.send(protocol.SegmentRefused(self._id, message.step, self._typed_error(error).to_problem()))
            return
        for (node, output), source in sources.items():
            self._outputs[message.step, node, output] = WorkerOutputReader(source)
        self._process.send(protocol.Submitted(self._id, message.step, self._run.id))

    async def _place_file(self, message: protocol.PlaceMedia) -> None:
        try:
            literal = await self._media.place(message)
        except Exception as error:  # noqa: BLE001 - as above
            problem = self._typed_error(error).to_problem()
            self._process.send(protocol.MediaPlaced(self._id, message.number, {}, problem))
            return
        self._issued.update(handle_literals(literal))
        self._process.send(protocol.MediaPlaced(self._id, message.number, literal))

    async def _send_items(self, message: protocol.Read, output: WorkerOutputReader) -> None:
        place = (message.id, message.step, message.node, message.output)
        try:
            items = await output.next_items()
            output.busy = False
            is_last = not items or output.is_exhausted  # sent with the last items, which saves a request
            self._process.send(protocol.Items(*place, pack_items(items), is_last))
        except Exception as error:  # noqa: BLE001 - as above
            self._process.send(protocol.Items(*place, (), True, self._typed_error(error).to_problem()))
        await self._process.drain()

    def _typed_error(self, error: Exception) -> OmnibusError:
        return client_error(error, f"{self._run.id} of app {self._process.name}")

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


# Checks


def handle_literals(value: Any) -> Iterator[bytes]:
    """Yield each literal with a handle in ``value``, encoded for comparison."""
    if isinstance(value, dict):
        if HANDLE in value:
            yield _encode(value)
        for element in value.values():
            yield from handle_literals(element)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from handle_literals(element)


def check_segment(segment: Segment, issued_literals: Set[bytes]) -> None:
    """Raise ``ProtocolError`` unless the SDK could have recorded ``segment`` in this request.

    ``issued_literals`` are the complete literals with handles of the request. A handle with a wrong content hash would
    put one client's image into a cache under the hash of another client's image.
    """
    count = len(segment.nodes)
    if not count or any(len(each) not in (0, count) for each in (segment.work, segment.pins)):
        raise ProtocolError(f"a segment of {count} calls with {len(segment.work)} loads and {len(segment.pins)} pins")
    for node in segment.nodes:
        _check_node(node, issued_literals)
    if not all(0 <= node < count for node, _ in segment.outputs) or len(segment.outputs) > MAX_OUTPUTS:
        raise ProtocolError(f"a segment of {count} calls requests {len(segment.outputs)} outputs of unknown calls")
    if (
        not _all_within(segment.work, MAX_WORK_TOKENS)
        or len(segment.choices) > MAX_CHOICES
        or any(len(pin) > MAX_PIN_CHARS for pin in segment.pins)
    ):
        raise ProtocolError(
            f"a segment's loads, pins or choices are out of bounds (a load is at most {MAX_WORK_TOKENS})"
        )


def _check_node(node: GraphNode, issued_literals: Set[bytes]) -> None:
    if not issued_literals >= set(handle_literals(node.inputs)):
        raise ProtocolError(f"a call of {node.task} names media that this request was not given")
    if node.digest != call_digest(node.task, node.inputs) or not _all_within((node.salt,), MAX_SALT):
        raise ProtocolError(f"a call of {node.task} does not match its digest")


def _all_within(numbers: Iterable[int], most: int) -> bool:
    return all(0 <= number <= most for number in numbers)
