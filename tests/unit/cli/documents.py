"""A recorded invocation and its end as stored: plain JSON."""

import json
from typing import Any

from omnibus import graph
from omnibus.graph import Invocation
from omnibus.recording import records
from omnibus.recording.records import EndRecord


def make_node(component: str, *uses: tuple[int, str], **inputs: Any) -> dict[str, Any]:
    return {"task": f"{component}-m", "component": component, "inputs": inputs, "digest": "0" * 16, "uses": uses}


INVOCATION: dict[str, Any] = {
    "v": 1, "id": "g-0-1", "app": "chat", "model": "m", "type": "vision+thinker", "path": "E>L", "epoch": 3, "seed": 7,
    "created": 1000.0, "deadline": 1120.0, "reply": "omnibus.reply.g",
    "nodes": [
        make_node("vision", media={"$handle": {"id": 1}, "sha256": "aa", "nbytes": 2048, "mime": "image/png"}),
        make_node("vision", media={"sha256": "bb", "nbytes": 7}),
        make_node(
            "thinker", (0, "embedding"), (1, "embedding"),
            items=[{"$ref": [1, "embedding"]}, {"$ref": [0, "embedding"]}], messages=[{"role": "user"}], prompt="hü",
            top=3,
        ),
    ],
    "outputs": [[2, "text"]], "options": ["E", "E", "L"], "route": ["e-0", "e-0", "l-1"], "replay_of": "",
}  # fmt: skip


def make_hop(node: int, taken: float, ready: float, first: float, end: float, **more: Any) -> dict[str, Any]:
    """Return a hop with times in seconds after the start."""
    times = {"taken": 1000 + taken, "ready": 1000 + ready, "first": 1000 + first, "end": 1000 + end}
    return {"t": "done", "inv": "g-0-1", "node": node, "executor": "x", **times, **more}


ENDED: dict[str, Any] = {
    "kind": "end", "inv": "g-0-1", "status": "done", "created": 1000.0, "finished": 1001.0,
    "first": 1000.5, "attempts": 1, "path": "E>L", "route": ["e-0", "e-0", "l-1"],
    "hops": [
        make_hop(0, 0, 0, 0.25, 0.25, nbytes=4096),
        make_hop(1, 0.1, 0.2, 0.3, 0.3, began=1000.25),
        make_hop(2, 0.05, 0.4, 0.5, 1.0, arrived=[1000.25, 1000.4]),
    ],
    "answer": {"text": "hello", "audio_seconds": 1.5, "audio_sha256": "0123456789abcdef0123"},
}  # fmt: skip


def make_invocation(**changes: Any) -> Invocation:
    return graph.decode_invocation(json.dumps({**INVOCATION, **changes}).encode())


def make_end(**changes: Any) -> EndRecord:
    return records.decode_end(json.dumps({**ENDED, **changes}).encode())
