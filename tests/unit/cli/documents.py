"""A recorded invocation and its end as ``omnibus show`` reads them: plain JSON."""

from typing import Any

INVOCATION: dict[str, Any] = {
    "id": "g-0-1", "model": "m", "type": "vision+thinker", "path": "E>L", "epoch": 3, "seed": 7, "replay_of": "",
    "nodes": [
        {"component": "vision", "inputs": {"media": {"$handle": {"id": 1}, "sha256": "aa"}}},
        {"component": "vision", "inputs": {"media": {"sha256": "bb"}}},
        {"component": "thinker", "inputs": {
            "items": [{"$ref": [1, "embedding"]}, {"$ref": [0, "embedding"]}], "messages": [{"role": "user"}],
        }},
    ],
    "route": ["e-0", "e-0", "l-1"],
}  # fmt: skip


def hop(node: int, taken: float, ready: float, first: float, end: float) -> dict[str, Any]:
    """Times in seconds after the beginning."""
    return {"node": node, "taken": 1000 + taken, "ready": 1000 + ready, "first": 1000 + first, "end": 1000 + end}


ENDED: dict[str, Any] = {
    "kind": "end", "inv": "g-0-1", "status": "done", "created": 1000.0, "finished": 1001.0,
    "first": 1000.5, "attempts": 1,
    "hops": [hop(0, 0, 0, 0.25, 0.25), hop(1, 0.1, 0.2, 0.3, 0.3), hop(2, 0.05, 0.3, 0.5, 1.0)],
    "answer": {"text": "hello", "audio_seconds": 1.5, "audio_sha256": "0123456789abcdef0123"},
}  # fmt: skip
