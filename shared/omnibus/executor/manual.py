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
    invocation = graph.decode_invocation(body)
    graph.verify_uses(invocation.nodes)
    own_route = [me.id if node.task in me.tasks else "" for node in invocation.nodes]
    outputs = [
        (index, output) for index, route in enumerate(own_route) if route for output in invocation.find_consumers(index)
    ]
    return msgspec.structs.replace(
        invocation,
        id=f"hand-{os.urandom(6).hex()}",
        route=tuple(own_route),
        reply=reply,
        outputs=tuple(dict.fromkeys([*invocation.outputs, *outputs])),
        retained=(),
        attempts=(),
        resumes=(),
        deadline=time.time() + max(1.0, invocation.deadline - invocation.created),
    )
