"""A gateway's work by hand on the bus; executors cannot distinguish the two."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from omnibus import graph
from omnibus.bus import messages, subjects
from omnibus.bus.messages import Chunk, Hop, InvocationEnd, NodeFailed, Reply
from omnibus.graph import HANDLE, Invocation
from omnibus.tensors.client import TensorClient
from tests.e2e.questions import Question
from tests.e2e.system import System
from tests.e2e.watch import Watch

_ME = "by-hand"


class ReplayedAnswer(NamedTuple):
    """Text of an answer, and its samples from the vocoder, float32 [n]."""

    text: str
    sound: np.ndarray


async def record_chat(system: System, body: Mapping[str, Any], path: str) -> Invocation:
    """The recorded invocation of a chat request that took ``path``."""
    async with Watch.on(system) as watch, system.http() as http:
        answer = await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": path})
        await watch.end(answer.headers["x-request-id"])
    return graph.decode_invocation((await system.record(answer.headers["x-request-id"]))[0])


async def replay_record(system: System, record: Invocation, question: Question) -> ReplayedAnswer:
    """Send ``record`` to the executors of its route and read the answer.

    ``record`` is that of ``question``.
    """
    async with system.bus() as bus, system.tensors() as tensors:
        invocation = await _own_invocation(record, [value for kind, value in question.parts if kind != "text"], tensors)
        collector = _Taken(tensors, len(record.nodes))
        await bus.subscribe(invocation.reply, lambda delivery: collector.take(delivery.data))
        for executor, node in dict(zip(invocation.route, invocation.nodes, strict=True)).items():
            bus.publish(subjects.task_subject(node.task, executor), graph.encode_invocation(invocation))
        await asyncio.wait_for(collector.over.wait(), 30)
        bus.publish(subjects.end_subject(invocation.id), msgspec.json.encode(InvocationEnd(invocation.id, "done")))
        tensors.end_invocation(invocation.id)

    assert not [one for one in collector.replies if isinstance(one, NodeFailed)]
    assert collector.nodes == set(range(len(record.nodes)))
    chunks = [one for one in collector.replies if isinstance(one, Chunk) and one.output == "text"]
    return ReplayedAnswer("".join(one.data.get("text", "") for one in chunks), np.concatenate(collector.sound))


class _Taken:
    """Replies so far to one invocation of ``count`` nodes."""

    def __init__(self, tensors: TensorClient, count: int) -> None:
        self.replies: list[Reply] = []
        self.sound: list[np.ndarray] = []
        self.nodes: set[int] = set()  # that are finished; their times may come twice
        self.over = asyncio.Event()
        self._tensors = tensors
        self._count = count

    def take(self, frame: bytes) -> None:
        for message in messages.decode_replies(frame):
            self.replies.append(message)
            if isinstance(message, Chunk) and message.handle is not None:
                self.sound.append(np.array(self._tensors.view(message.handle)))
                self._tensors.release(message.handle)
            if isinstance(message, Hop):
                self.nodes.add(message.node)
            if isinstance(message, NodeFailed) or len(self.nodes) == self._count:
                self.over.set()


async def _own_invocation(record: Invocation, files: Sequence[bytes], tensors: TensorClient) -> Invocation:
    """Return ``record`` as this test's invocation, with its media stored again."""
    id, now = f"{_ME}-{time.time_ns():x}", time.time()
    nodes = list(record.nodes)
    for index, file in enumerate(files):
        handle = await tensors.put(np.frombuffer(file, np.uint8), invocation=id, deadline=now + 60)
        media = {**nodes[index].inputs["media"], HANDLE: msgspec.to_builtins(handle)}
        nodes[index] = graph.with_inputs(nodes[index], {"media": media})
    changes = {
        "id": id,
        "created": now,
        "deadline": now + 60,
        "reply": subjects.reply_subject(_ME),
        "nodes": tuple(nodes),
    }
    return msgspec.structs.replace(record, **changes, retained=())  # nothing is to begin again
