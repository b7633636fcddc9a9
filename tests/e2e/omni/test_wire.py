"""Everything a gateway does, done by hand on the bus: the executors cannot tell the difference."""

import asyncio
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from omnibus import graph
from omnibus.bus import messages, subjects
from omnibus.bus.messages import Chunk, End, Failed, Hop, Reply
from omnibus.graph import HANDLE, Invocation
from omnibus.tensors.client import TensorClient
from tests import models_oracle as oracle
from tests.e2e.omni.speech import CODES, SEED, TOKENS, VOICE, wanted
from tests.e2e.questions import ask, audio, image
from tests.e2e.system import System
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

QUESTION = ask(image(2), audio(1.1, 1), "describe")
FILES = [value for kind, value in QUESTION.parts if kind != "text"]
ME = "by-hand"


async def recorded(omni: System, path: str) -> Invocation:
    """A recorded invocation of ``QUESTION``."""
    async with Watch.on(omni) as watch, omni.http() as http:
        answer = await http.post("/v1/chat/completions", json=wanted(QUESTION), headers={"x-omnibus-path": path})
        await watch.end(answer.headers["x-request-id"])
    return graph.decode((await omni.record(answer.headers["x-request-id"]))[0])


async def mine(record: Invocation, tensors: TensorClient) -> Invocation:
    """``record`` as an invocation of this test's own, with its media in the arena again."""
    id, now = f"{ME}-{time.time_ns():x}", time.time()
    nodes = list(record.nodes)
    for index, file in enumerate(FILES):
        handle = await tensors.put(np.frombuffer(file, np.uint8), invocation=id, deadline=now + 60)
        media = {**nodes[index].inputs["media"], HANDLE: msgspec.to_builtins(handle)}
        nodes[index] = graph.with_inputs(nodes[index], {"media": media})
    changes = {"id": id, "created": now, "deadline": now + 60, "reply": subjects.reply(ME), "nodes": tuple(nodes)}
    return msgspec.structs.replace(record, **changes)


@pytest.mark.parametrize("path", ["EV>EA>Th>Ta>V", "M"])
async def test_float_samples_are_those_of_the_whole_model(omni: System, omni_checkpoint: Path, path: str):
    _, text, codes, expected = oracle.omni_answer(
        omni_checkpoint, QUESTION.plain, QUESTION.media, TOKENS, VOICE, CODES, SEED
    )
    record = await recorded(omni, path)
    replies: list[Reply] = []
    sound: list[np.ndarray] = []
    nodes: set[int] = set()  # that are finished; their times may come twice
    over = asyncio.Event()

    async with omni.bus() as bus, omni.tensors() as tensors:
        invocation = await mine(record, tensors)

        def take(frame: bytes) -> None:
            for message in messages.decode_replies(frame):
                replies.append(message)
                if isinstance(message, Chunk) and message.handle is not None:
                    sound.append(np.array(tensors.view(message.handle)))
                    tensors.release(message.handle)
                if isinstance(message, Hop):
                    nodes.add(message.node)
                if isinstance(message, Failed) or len(nodes) == len(record.nodes):
                    over.set()

        await bus.subscribe(invocation.reply, lambda delivery: take(delivery.data))
        sent = dict(zip(invocation.route, invocation.nodes, strict=True))
        for executor, node in sent.items():
            bus.publish(subjects.task(node.task, executor), graph.encode(invocation))
        await asyncio.wait_for(over.wait(), 30)
        bus.publish(subjects.end(invocation.id), msgspec.json.encode(End(invocation.id, "done")))
        tensors.end(invocation.id)

    assert not [one for one in replies if isinstance(one, Failed)]
    assert nodes == set(range(len(record.nodes)))
    said = "".join(one.data.get("text", "") for one in replies if isinstance(one, Chunk) and one.output == "text")
    assert said == text
    np.testing.assert_allclose(np.concatenate(sound), expected.numpy().reshape(-1), rtol=0, atol=1e-5)
    assert len(np.concatenate(sound)) == len(codes) * 480
    await omni.ledger_is_empty()
