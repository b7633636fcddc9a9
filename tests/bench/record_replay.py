"""CPU microseconds to record a graph and to replay it verified.

    python -m tests.bench.record_replay

It runs without bus and executors. Two nodes are a chat with one image (encoder, thinker); 24 images make 25 nodes. Both
run as in the gateway: it validates inputs, finds references and computes digests. On replay it compares every call.
"""

import json
import statistics
import time

import msgspec

from omnibus.task import MLLM, ChatInput, Encode, Think, record, replay
from omnibus.tensors.handle import Item

TWO, MANY = "record_replay.two_nodes_us", "record_replay.images24_us"
_BATCHES = 30

_TASK = MLLM(encoders={"image": Encode(model="m", component="vision")}, thinker=Think(model="m", component="thinker"))
_PARAMS = {"max_tokens": 64, "temperature": 0.7, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0, "stop": []}


class _Nothing:
    async def next_items(self) -> list[Item]:
        return []


def _make_request(pictures: int) -> ChatInput:
    parts = [*({"type": "image"} for _ in range(pictures)), {"type": "text", "text": "What is on these pictures?"}]
    handle = {
        "node": "n",
        "arena": "a",
        "offset": 4096,
        "nbytes": 9000,
        "dtype": "uint8",
        "shape": [9000],
        "generation": 7,
    }
    return ChatInput(
        messages=msgspec.Raw(msgspec.json.encode([{"role": "user", "content": parts}])),
        media=tuple(
            {
                "$handle": {"id": each, **handle},
                "modality": "image",
                "mime": "image/jpeg",
                "sha256": f"{each:064x}",
                "nbytes": 9000,
            }
            for each in range(pictures)
        ),
        modalities=("image",) * pictures,
        params=msgspec.Raw(msgspec.json.encode(_PARAMS)),
        tokens=(256,) * pictures,
    )


def _record_and_replay(request: ChatInput) -> None:
    recording = record(_TASK.invoke, request)
    replay(_TASK.invoke, request, recording, {origin: _Nothing() for origin in recording.outputs})


def _measure_cost(pictures: int, count: int) -> float:
    """Median over batches of the microseconds for one record and replay."""
    request = _make_request(pictures)
    times = []
    for _ in range(_BATCHES):
        before = time.thread_time_ns()
        for _ in range(count):
            _record_and_replay(request)
        times.append((time.thread_time_ns() - before) / count / 1000)
    return statistics.median(times)


def measure_record_replay() -> dict[str, float]:
    return {TWO: round(_measure_cost(1, 300), 2), MANY: round(_measure_cost(24, 30), 2)}


if __name__ == "__main__":
    print(json.dumps(measure_record_replay()))
