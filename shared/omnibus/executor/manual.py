"""Recorded invocation run by hand: ``nats req --no-templates omnibus.task.<unit-task> '<invocation>'``."""

import os
import time

import msgspec

from omnibus import graph
from omnibus.executor.identity import ExecutorIdentity
from omnibus.graph import Invocation


def select_own_nodes(body: bytes, me: ExecutorIdentity, reply: str) -> Invocation:
    """Return this executor's nodes of a recorded invocation, under a new id.

    All their outputs are sent to ``reply``, including unrequested ones. Raises ``ProtocolError``.
    """
    recorded = graph.decode_invocation(body)
    graph.verify_uses(recorded.nodes)
    mine = [me.id if node.task in me.tasks else "" for node in recorded.nodes]
    outputs = [
        (index, output) for index, route in enumerate(mine) if route for output in recorded.find_consumers(index)
    ]
    return msgspec.structs.replace(
        recorded,
        id=f"hand-{os.urandom(6).hex()}",
        route=tuple(mine),
        reply=reply,
        outputs=tuple(dict.fromkeys([*recorded.outputs, *outputs])),
        retained=(),
        attempts=(),
        resumes=(),
        deadline=time.time() + max(1.0, recorded.deadline - recorded.created),
    )
