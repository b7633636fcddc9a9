"""Subscriptions of an executor, and its registration as a NATS micro service.

Recorded invocation run by hand: ``nats req --no-templates omnibus.task.<unit-task> '<invocation>'``.
"""

import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from omnibus import graph
from omnibus.bus import Bus, Handler, Responder, subjects
from omnibus.executor.status import ExecutorIdentity
from omnibus.graph import Invocation


class TaskSubscriptions:
    """Subscriptions that follow the executor's role.

    ``on_invocation`` gets messages of gateways, ``on_manual_request`` those of people and tools. ``component_stats``
    returns the data of a component for ``nats service stats``.
    """

    def __init__(
        self,
        bus: Bus,
        on_invocation: Handler,
        on_manual_request: Responder,
        component_stats: Callable[[str], Any],
    ) -> None:
        self._bus = bus
        self._on_invocation = on_invocation
        self._on_manual_request = on_manual_request
        self._component_stats = component_stats
        self._ends: list[Callable[[], Awaitable[None]]] = []

    async def open(self, me: ExecutorIdentity) -> None:
        """Accept invocations of the unit tasks of ``me``."""
        for task in me.tasks:  # one by one: its user on the bus may be restricted to these
            self._ends.append(await self._bus.subscribe(subjects.task_subject(task, me.id), self._on_invocation))
        self._ends.append(
            await self._bus.register_service(
                f"omnibus-{subjects.subject_token(me.option)}",
                {"executor": me.id, "model": me.model, "option": me.option, "node": me.node},
                {task: (subjects.task_subject(task), self._on_manual_request) for task in me.tasks},
                lambda task: self._component_stats(me.tasks[task]),
            )
        )

    async def close(self) -> None:
        """Accept no more invocations."""
        ends, self._ends = self._ends, []
        for end in ends:
            await end()


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
