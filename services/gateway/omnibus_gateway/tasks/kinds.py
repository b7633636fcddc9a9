"""Kinds of chats: requests with the same graph of a composite task, except for its literals.

A kind is everything that ``invoke`` may read: modalities, voice, audio output, and estimates of work. Everything else,
which is messages, parameters and media, is a hole of a skeleton (``omnibus.task.skeleton``). The skeleton is recorded
and verified once, and filled for each request.
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
from omnibus_gateway.request.factory import RequestFactory
from omnibus_gateway.request.request import ClientRequest
from omnibus_gateway.routing.assignment import Assignment

log = logging.getLogger(__name__)

#: Maximum number of kinds per plan.
MAX_KINDS = 256


class ChatKind(NamedTuple):
    """Graph of all chats of one kind, assigned by ``plan``."""

    plan: Plan | None
    skeleton: Skeleton
    assignment: Assignment

    @property
    def segment(self) -> Segment:
        """Graph with holes; its executors are already known."""
        return self.skeleton.segment

    def fill(self, chat_input: ChatInput) -> tuple[Segment, Assignment]:
        """Return the graph of ``chat_input``, whose inputs are placed, and its assignment."""
        segment = self.skeleton.fill(_literals(chat_input))
        kind = self.assignment
        return segment, Assignment(kind.model, kind.kind, kind.parts, segment.nodes)


class RequestGraph(NamedTuple):
    """Graph of one request, and its assignment if known. ``bind`` builds the answer from its streams."""

    segment: Segment
    assignment: Assignment | None
    bind: Callable[[Mapping[tuple[int, str], Any]], ChatOutput]


class ChatKinds:
    """Cache of kinds for the current plan. One in ``verify_every`` requests is still recorded in full."""

    def __init__(self, runs: RequestFactory, verify_every: int) -> None:
        self._runs = runs
        self._every = max(1, verify_every)
        self._plan: Plan | None = None
        self._kinds: dict[object, ChatKind | None] = {}
        self._excluded: set[str] = set()  # models whose task depends on more than the kind
        self._requests = count(1)

    def find_kind(self, model: str, task: CompositeTask, chat_input: ChatInput) -> ChatKind | None:
        """Return the kind of ``chat_input`` for ``task`` of ``model``; None if it must be recorded separately.

        Raises as ``Router.assign``.
        """
        if self._plan is not self._runs.router.plan:
            self._plan = self._runs.router.plan
            self._kinds.clear()
            self._excluded.clear()
        if model in self._excluded:
            return None
        key = (
            model,
            chat_input.modalities,
            chat_input.voice,
            chat_input.speech is None,
            chat_input.tokens,
            chat_input.prompt,
            chat_input.answer,
        )
        if key not in self._kinds:
            if len(self._kinds) >= MAX_KINDS:
                self._kinds.clear()
            self._kinds[key] = self._record_kind(model, task, chat_input)
        return self._kinds[key]

    def _record_kind(self, model: str, task: CompositeTask, chat_input: ChatInput) -> ChatKind | None:
        holes = [Hole() for _ in _literals(chat_input)]
        messages, params, speech, *media = holes
        open_literals: dict[str, Any] = {"messages": messages, "params": params, "media": tuple(media)}
        if chat_input.speech is not None:
            open_literals["speech"] = speech
        try:
            skeleton = record_skeleton(task.invoke, chat_input.model_copy(update=open_literals), holes)
        except OmnibusError as error:  # an invalid request raises this again when it is recorded
            log.debug("%s has no graph by kind: %s", model, error)
            return None
        if skeleton is None:
            return None
        assignment = self._runs.router.assign(skeleton.segment.nodes, model)
        return ChatKind(self._runs.router.plan, skeleton.with_nodes(assignment.nodes), assignment)

    def known_assignment(self, kind: ChatKind | None) -> Assignment | None:
        """Return the assignment of ``kind``; None after a change of plan."""
        return kind.assignment if kind is not None and kind.plan is self._runs.router.plan else None

    def build_graph(
        self, kind: ChatKind | None, run: ClientRequest, task: CompositeTask, chat_input: ChatInput
    ) -> RequestGraph:
        """Build the graph of ``chat_input``, of this ``kind``, whose inputs are placed.

        Raises as ``record`` and ``Router.assign``.
        """
        if kind is not None and kind.plan is not self._runs.router.plan:
            kind = self.find_kind(run.model, task, chat_input)
        if kind is not None and next(self._requests) % self._every:
            segment, assignment = kind.fill(chat_input)
            return RequestGraph(segment, assignment, kind.skeleton.bind_answer)
        recorded_segment = record(task.invoke, chat_input, run.choice_point)
        if kind is not None:
            self._compare_graphs(kind, run.model, chat_input, recorded_segment)
        return RequestGraph(recorded_segment, None, partial(replay, task.invoke, chat_input, recorded_segment))

    def _compare_graphs(self, kind: ChatKind, model: str, chat_input: ChatInput, recorded_segment: Segment) -> None:
        """Compare the graph of a request with that of its kind; exclude the model if they differ."""
        filled_segment, assignment = kind.fill(chat_input)
        nodes = self._runs.router.assign(recorded_segment.nodes, model).nodes
        about = (recorded_segment.outputs, recorded_segment.work, recorded_segment.pins, recorded_segment.choices)
        if nodes != assignment.nodes or about != (
            filled_segment.outputs,
            filled_segment.work,
            filled_segment.pins,
            filled_segment.choices,
        ):
            self._excluded.add(model)
            log.error(
                "requests of one kind to %s have different graphs: its `invoke` depends on time, randomness or "
                "other state than its request. From now on, each request is recorded separately",
                model,
            )


def _literals(chat_input: ChatInput) -> list[Any]:
    return [chat_input.messages, chat_input.params, chat_input.speech, *chat_input.media]
