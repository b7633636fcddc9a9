"""Inputs of requests: validated, completed, and placed where executors read them.

Large ones go to the arena, and earlier results to later segments. They are stored by hash, so that a replay reads the
same bytes. Prompts are salted: without a salt, the time to the first token would reveal to a tenant how much of its
prompt another tenant has sent.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np

from omnibus import graph
from omnibus.errors import ProtocolError
from omnibus.graph import HANDLE, REF, GraphNode, call_digest, encode_input, verify_uses
from omnibus.metrics import TRANSFER
from omnibus.task import Segment
from omnibus.task.record import FROM
from omnibus.task.result import unwrap_value
from omnibus.task.session import MAX_CALLS, MAX_SEGMENTS, graph_size_error
from omnibus.tensors.client import TensorClient
from omnibus.tensors.handle import Item
from omnibus_gateway.dispatch.dispatcher import MAX_ATTEMPTS
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.dispatch.streams import ResultStream
from omnibus_gateway.media.blob_store import MediaStore
from omnibus_gateway.routing.assignment import ModelSampling
from omnibus_gateway.routing.replicas import BEGINNING

#: Seconds that inputs outlive the deadline.
DEADLINE_GRACE_SECONDS = 10.0
#: Reads of an input that several segments may use; its memory is freed when the request ends.
MAX_READERS = 60_000
#: Bytes of the beginning of an audio file, after the WAV header, which has its length: 1.4 s of a microphone.
BEGINNING_BYTES, HEADER_BYTES = 1 << 16, 44


async def place_input(
    tensors: TensorClient,
    keep: MediaStore | None,
    data: bytes,
    about: tuple[str, str, str],
    invocation: str,
    deadline: float,
    readers: int = MAX_ATTEMPTS + 1,
    salt: str = "",
) -> dict[str, Any]:
    """Put one input into the arena for every attempt of ``invocation``; returns its literal.

    ``about`` is its modality, mime type and SHA-256. Results computed from it are shared under one ``salt``.
    """
    modality, mime, digest = about
    began = time.perf_counter()
    handle = await tensors.put(
        np.frombuffer(data, np.uint8),
        invocation=invocation,
        deadline=deadline + DEADLINE_GRACE_SECONDS,
        readers=readers,
    )
    TRANSFER.count_transfer("gateway", "media", len(data), time.perf_counter() - began)
    if keep is not None:
        keep.put_nowait(digest, data)
    literal = {"modality": modality, "mime": mime, "sha256": digest, "nbytes": len(data)}
    if modality == "audio" and len(data) >= HEADER_BYTES + BEGINNING_BYTES:
        literal[BEGINNING] = sha256(memoryview(data)[HEADER_BYTES:][:BEGINNING_BYTES]).hexdigest()[:16]
    return {HANDLE: msgspec.to_builtins(handle), **literal, **({"salt": salt} if salt else {})}


class TensorPlacer:
    """Puts tensors of earlier segments into the arena again, for ``invocation``."""

    def __init__(self, tensors: TensorClient, keep: MediaStore | None, invocation: str, deadline: float) -> None:
        self._tensors = tensors
        self._keep = keep
        self._invocation = invocation
        self._deadline = deadline

    async def put(self, item: Item, nodes: int) -> dict[str, Any]:
        """Return the literal of a tensor that ``nodes`` inputs read per attempt."""
        array = np.ascontiguousarray(item.array)
        handle = await self._tensors.put(
            array,
            invocation=self._invocation,
            deadline=self._deadline + DEADLINE_GRACE_SECONDS,
            readers=min(nodes * (MAX_ATTEMPTS + 1), MAX_READERS),
        )
        body = array.tobytes()
        digest = sha256(body).hexdigest()
        if self._keep is not None:
            self._keep.put_nowait(digest, body)
        about = {"dtype": array.dtype.name, "shape": list(array.shape), "sha256": digest, "nbytes": len(body)}
        return {**item.data, HANDLE: msgspec.to_builtins(handle), **about}


async def restore_input(
    tensors: TensorClient,
    keep: MediaStore,
    value: dict[str, Any],
    invocation: str,
    deadline: float,
    readers: int = MAX_ATTEMPTS + 1,
) -> dict[str, Any]:
    """Put an input, recorded by its hash, at a new handle.

    Raises ``NotFound``, and ``ProtocolError`` for a tensor that does not match its record.
    """
    data = await keep.get(str(value.get("sha256", "")))
    array = np.frombuffer(data, np.uint8)
    if "dtype" in value:
        try:
            array = array.view(str(value["dtype"])).reshape(value["shape"])
        except (KeyError, TypeError, ValueError) as error:
            description = f"{str(value['dtype'])[:40]} {str(value.get('shape'))[:80]}"
            raise ProtocolError(f"a recorded tensor cannot be {description}: {error}") from error
    handle = await tensors.put(
        array, invocation=invocation, deadline=deadline + DEADLINE_GRACE_SECONDS, readers=readers
    )
    return {**value, HANDLE: msgspec.to_builtins(handle)}


_RESERVED_KEYS = (REF, FROM, HANDLE)
#: A result of an earlier segment: step, node, output.
Place = tuple[int, int, str]


def has_references(nodes: Sequence[GraphNode]) -> bool:
    """Return True if ``nodes`` may read results of earlier segments."""
    return any(FROM in str(node.inputs) for node in nodes)


def find_earlier(segments: Sequence[InflightInvocation], place: Place) -> ResultStream | None:
    """Return the result at ``place`` of the sent segments; None without one."""
    step, node, output = place
    running = next((each for each in segments if each.invocation.step == step), None)
    return running.streams.get((node, output)) if running is not None else None


async def fill_references(
    nodes: Sequence[GraphNode], earlier: Callable[[Place], ResultStream | None], tensors: TensorPlacer
) -> tuple[GraphNode, ...]:
    """Return ``nodes`` with results instead of references; each tensor is placed once for all readers.

    Raises ``ProtocolError`` for a reference to an unknown result, and the error of a failed one.
    """
    reader_counts = Counter(
        place for node in nodes for value in node.inputs.values() for place in _iterate_references(value)
    )
    literals = {}
    for place, readers in reader_counts.items():
        stream = earlier(place)
        if stream is None:
            raise ProtocolError(f"a graph refers to {list(place)}, which no earlier segment of its request made")
        item = await stream.wait_first()
        literals[place] = _to_literal(item) if item.array is None else await tensors.put(item, readers)
    return tuple(
        [
            _replace_inputs(node, {name: _fill_value(value, literals) for name, value in node.inputs.items()})
            for node in nodes
        ]
    )


def _to_literal(item: Item) -> Any:
    """Return a value as an input. A client's JSON must not become an edge, or open memory."""
    value = unwrap_value(item.data)
    if _has_reserved_key(value):
        raise ProtocolError(f"a result contains one of the reserved keys {', '.join(_RESERVED_KEYS)}: rename the key")
    return value


def _has_reserved_key(value: Any) -> bool:
    if type(value) is dict:
        marks = [mark for mark in _RESERVED_KEYS if mark in value]
        if marks == [REF] and type(value[REF]) is str:  # the one of a JSON schema
            marks = []
        return bool(marks) or any(map(_has_reserved_key, value.values()))
    return type(value) is list and any(map(_has_reserved_key, value))


def _iterate_references(value: Any) -> Iterator[Place]:
    if type(value) is dict:
        if FROM in value:
            yield _parse_reference(value[FROM])
            return
        value = list(value.values())
    if type(value) is list:
        for element in value:
            yield from _iterate_references(element)


def _parse_reference(mark: Any) -> Place:
    match mark:
        case [int(step), int(node), str(output)]:
            return step, node, output
    raise ProtocolError(f"a graph refers to {str(mark)[:80]}, but a result must be [step, node, output]")


def _fill_value(value: Any, literals: dict[Place, Any]) -> Any:
    if type(value) is list:
        return [_fill_value(element, literals) for element in value]
    if type(value) is not dict:
        return value
    return (
        literals[_parse_reference(value[FROM])]
        if FROM in value
        else {key: _fill_value(each, literals) for key, each in value.items()}
    )


def _replace_inputs(node: GraphNode, inputs: dict[str, Any]) -> GraphNode:
    if inputs == node.inputs:
        return node
    return msgspec.structs.replace(node, inputs=inputs, digest=call_digest(node.task, inputs))


#: Prefixes of unit tasks that read a prompt.
_PROMPT_TASKS = ("think-", "prefill-")


def salt_prompt(node: GraphNode, salt: str, *, in_conversation: bool = True) -> GraphNode:
    """Return ``node`` with ``salt`` for its prompt, if it reads one.

    Parameters in the arena got the salt when they were placed. Unless ``in_conversation``, the prompt is not cached for
    the next turn of its conversation.
    """
    params = node.inputs.get("params")
    if not node.task.startswith(_PROMPT_TASKS) or not isinstance(params, dict | msgspec.Raw):
        return node
    if isinstance(params, dict) and HANDLE in params:
        return node
    decoded_params: dict[str, Any] = msgspec.json.decode(params) if isinstance(params, msgspec.Raw) else dict(params)
    if not in_conversation:
        decoded_params.pop("cache_key", None)
    decoded_params["cache_salt"] = salt
    salted_params = msgspec.Raw(encode_input(decoded_params)) if isinstance(params, msgspec.Raw) else decoded_params
    return graph.with_inputs(node, {**node.inputs, "params": salted_params})


def salt_params(body: bytes, salt: str) -> bytes:
    """Return the JSON ``body`` of ``TextParams`` with ``salt``, if there is one."""
    if not salt:
        return body
    return encode_input({**msgspec.json.decode(body), "cache_salt": salt})


#: Prefixes of unit tasks that sample text tokens.
_TEXT_TASKS = ("think-", "prefill-", "decode-")
_encode = msgspec.json.Encoder(order="sorted").encode


def complete_nodes(
    nodes: Sequence[GraphNode], model: str, sampling: Callable[[str], ModelSampling]
) -> tuple[GraphNode, ...]:
    """Return ``nodes`` with the ``sampling`` of their models; nodes without one use ``model``.

    The executor completes parameters that are in the arena.
    """
    return tuple([_complete_node(node, sampling(node.model or model)) for node in nodes])


def _complete_node(node: GraphNode, usual: ModelSampling) -> GraphNode:
    params = node.inputs.get("params")
    if not usual.values or not node.task.startswith(_TEXT_TASKS) or not isinstance(params, dict | msgspec.Raw):
        return node
    if isinstance(params, dict) and HANDLE in params:
        return node
    own_params: dict[str, Any] = msgspec.json.decode(params) if isinstance(params, msgspec.Raw) else dict(params)
    more = {name: value for name, value in usual.values.items() if not name.startswith("talker_")}
    if (bound := more.pop("max_tokens", None)) is not None and own_params.get("max_tokens") is None:
        more["usual_tokens"] = bound
    all_params = {**more, **own_params}
    encoded_params = msgspec.Raw(_encode(all_params)) if isinstance(params, msgspec.Raw) else all_params
    return graph.with_inputs(node, {**node.inputs, "params": encoded_params})


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
