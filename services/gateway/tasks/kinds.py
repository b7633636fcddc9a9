"""Kinds of chats: requests for which a composite task has the same graph, but for the literals in it.

A kind is all that an ``invoke`` may look at: modalities, voice, whether it speaks, and estimates of work. What it may
not look at are holes of a skeleton (``omnibus.task.skeleton``), which is recorded and verified once and filled for each
request: messages, parameters and media.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from omnibus.errors import OmnibusError
from omnibus.plan import Plan
from omnibus.task import ChatInput, ChatOutput, CompositeTask, Segment, record, replay
from omnibus.task.hole import Hole
from omnibus.task.skeleton import Skeleton, record_skeleton
from services.gateway.request.factory import RequestFactory
from services.gateway.request.request import ClientRequest
from services.gateway.routing.assignment import Assignment

log = logging.getLogger(__name__)

#: Kinds that are remembered per plan.
MAX_KINDS = 256


class ChatKind(NamedTuple):
    """The graph of all chats of one kind, assigned by ``plan``."""

    plan: Plan | None
    skeleton: Skeleton
    assignment: Assignment

    @property
    def segment(self) -> Segment:
        """The graph with holes: who runs it is known already."""
        return self.skeleton.segment

    def fill(self, wanted: ChatInput) -> tuple[Segment, Assignment]:
        """Return the graph of ``wanted``, whose inputs are in their places, and its assignment."""
        segment = self.skeleton.fill(_literals(wanted))
        kind = self.assignment
        return segment, Assignment(kind.model, kind.kind, kind.parts, segment.nodes)


class RequestGraph(NamedTuple):
    """The graph of one request; its assignment where that is known; and what makes an answer of the streams."""

    segment: Segment
    assignment: Assignment | None
    bind: Callable[[Mapping[tuple[int, str], Any]], ChatOutput]


class ChatKinds:
    """Remembers kinds while a plan is in force. One in ``verify_every`` requests is recorded in full nevertheless."""

    def __init__(self, runs: RequestFactory, verify_every: int) -> None:
        self._runs = runs
        self._every = max(1, verify_every)
        self._plan: Plan | None = None
        self._kinds: dict[object, ChatKind | None] = {}
        self._excluded: set[str] = set()  # models whose task looks at more than the kind
        self._requests = count(1)

    def find_kind(self, model: str, task: CompositeTask, wanted: ChatInput) -> ChatKind | None:
        """The kind of ``wanted``, whose ``task`` is that of ``model``. None for one that must be recorded by itself.

        Raises as ``Router.assign`` does.
        """
        if self._plan is not self._runs.router.plan:
            self._plan = self._runs.router.plan
            self._kinds.clear()
            self._excluded.clear()
        if model in self._excluded:
            return None
        key = (
            model,
            wanted.modalities,
            wanted.voice,
            wanted.speech is None,
            wanted.tokens,
            wanted.prompt,
            wanted.answer,
        )
        if key not in self._kinds:
            if len(self._kinds) >= MAX_KINDS:
                self._kinds.clear()
            self._kinds[key] = self._record_kind(model, task, wanted)
        return self._kinds[key]

    def _record_kind(self, model: str, task: CompositeTask, wanted: ChatInput) -> ChatKind | None:
        holes = [Hole() for _ in _literals(wanted)]
        messages, params, speech, *media = holes
        open_literals: dict[str, Any] = {"messages": messages, "params": params, "media": tuple(media)}
        if wanted.speech is not None:
            open_literals["speech"] = speech
        try:
            skeleton = record_skeleton(task.invoke, wanted.model_copy(update=open_literals), holes)
        except OmnibusError as error:  # what is wrong with the request itself is said when it is recorded
            log.debug("%s has no graph by kind: %s", model, error)
            return None
        if skeleton is None:
            return None
        assignment = self._runs.router.assign(skeleton.segment.nodes, model)
        return ChatKind(self._runs.router.plan, skeleton.with_nodes(assignment.nodes), assignment)

    def known_assignment(self, kind: ChatKind | None) -> Assignment | None:
        """Return the assignment of ``kind``, unless another plan came into force since it was found."""
        return kind.assignment if kind is not None and kind.plan is self._runs.router.plan else None

    def build_graph(
        self, kind: ChatKind | None, run: ClientRequest, task: CompositeTask, wanted: ChatInput
    ) -> RequestGraph:
        """The graph of ``wanted``, of this ``kind``, with inputs in their places.

        Raises as ``record`` and ``Router.assign`` do.
        """
        if kind is not None and kind.plan is not self._runs.router.plan:
            kind = self.find_kind(run.model, task, wanted)
        if kind is not None and next(self._requests) % self._every:
            segment, assignment = kind.fill(wanted)
            return RequestGraph(segment, assignment, kind.skeleton.bind_answer)
        recorded = record(task.invoke, wanted, run.choice_point)
        if kind is not None:
            self._compare_graphs(kind, run.model, wanted, recorded)
        return RequestGraph(recorded, None, partial(replay, task.invoke, wanted, recorded))

    def _compare_graphs(self, kind: ChatKind, model: str, wanted: ChatInput, recorded: Segment) -> None:
        """Compare a request's own graph with that of its kind. A task for which they differ has no kinds any more."""
        filled, assignment = kind.fill(wanted)
        nodes = self._runs.router.assign(recorded.nodes, model).nodes
        about = (recorded.outputs, recorded.work, recorded.pins, recorded.choices)
        if nodes != assignment.nodes or about != (filled.outputs, filled.work, filled.pins, filled.choices):
            self._excluded.add(model)
            log.error(
                "requests of one kind to %s have different graphs: its `invoke` depends on time, randomness or "
                "something outside of its request. From now on each of its requests is recorded by itself",
                model,
            )


def _literals(wanted: ChatInput) -> list[Any]:
    return [wanted.messages, wanted.params, wanted.speech, *wanted.media]
