"""Skeletons: graphs recorded once for all requests of a kind, with holes for their differences.

A hole stands for a literal that ``invoke`` only passes on. An ``invoke`` that reads it, or branches on it, gets
``PlaceholderError``. Its graph may depend on the request, so it has no skeleton and is recorded for each request. A
hole cannot detect time, randomness and ``is``. Callers therefore sometimes compare a skeleton with a graph that is
recorded in full.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from pydantic import BaseModel

from omnibus.graph import GraphNode, call_digest, with_inputs
from omnibus.task.input_codec import Hole
from omnibus.task.record import Recorder, ReplaySession, answer_outputs, call_invoke
from omnibus.task.result import Result
from omnibus.task.session import Segment


class _AnswerShape(NamedTuple):
    """Answer of an ``invoke``: a model whose fields are unchanged results, or None."""

    answer: BaseModel
    results: tuple[tuple[str, Result], ...]

    def bind(self, sources: Mapping[tuple[int, str], Any]) -> Any:
        bound = self.answer.model_copy()
        for name, result in self.results:
            bound.__dict__[name] = _bind_result(result, sources)  # it may be frozen
        return bound


class Skeleton:
    """A recorded and verified graph whose nodes have holes in their inputs.

    ``segment`` is the graph with None for holes; its digests have no meaning. Holes are dropped after recording, since
    not even a debugger can read them.
    """

    __slots__ = ("_answer", "_filled", "_repeats", "segment")

    def __init__(self, segment: Segment, holes: Sequence[Hole], answer: _AnswerShape) -> None:
        self._answer = answer
        numbers = {id(hole): number for number, hole in enumerate(holes)}
        filled_places = [
            tuple((name, numbers[id(value)]) for name, value in node.inputs.items() if type(value) is Hole)
            for node in segment.nodes
        ]
        self._filled = tuple((index, places) for index, places in enumerate(filled_places) if places)
        nodes = tuple(
            with_inputs(node, {**node.inputs, **{name: None for name, _ in places}})
            for node, places in zip(segment.nodes, filled_places, strict=True)
        )
        tasks = [node.task for node in nodes]
        self._repeats = len(set(tasks)) < len(tasks)
        self.segment = msgspec.structs.replace(segment, nodes=nodes)

    def with_nodes(self, nodes: Sequence[GraphNode]) -> "Skeleton":
        """Return the skeleton with ``nodes`` of equal inputs, e.g. of other models."""
        skeleton = object.__new__(Skeleton)
        skeleton._answer, skeleton._filled, skeleton._repeats = self._answer, self._filled, self._repeats
        skeleton.segment = msgspec.structs.replace(self.segment, nodes=tuple(nodes))
        return skeleton

    def fill(self, literals: Sequence[Any]) -> Segment:
        """Return the graph of a request. ``literals`` are JSON values, one for each hole, in order."""
        segment = self.segment
        nodes = list(segment.nodes)
        for index, places in self._filled:
            node = nodes[index]
            inputs = node.inputs.copy()
            for name, number in places:
                inputs[name] = literals[number]
            nodes[index] = GraphNode(
                node.task, node.component, inputs, call_digest(node.task, inputs), node.uses, node.model, node.salt
            )
        if self._repeats:
            _count_equal_calls(nodes)
        return Segment(tuple(nodes), segment.outputs, segment.work, segment.pins)

    def bind_answer(self, sources: Mapping[tuple[int, str], Any]) -> Any:
        """Return the answer of ``invoke`` for results from ``sources`` by (node, output)."""
        return self._answer.bind(sources)


def record_skeleton(invoke: Callable[[Any], Any], request: Any, holes: Sequence[Hole]) -> Skeleton | None:
    """Record ``invoke`` for a ``request`` with ``holes``, and replay it.

    Returns None if the graph or the answer does not have a fixed shape. Raises ``PlaceholderError`` for an ``invoke``
    that reads a hole, and the errors of ``record`` and ``replay``.
    """
    recorder = _HoleRecorder()
    with recorder:
        answer = call_invoke(invoke, request)
    recorder.raise_remembered_error()
    segment = recorder.build_segment(answer_outputs(answer, recorder))
    replayer = ReplaySession(segment, {}, 0)
    with replayer:
        answer = call_invoke(invoke, request)
    replayer.verify_end(answer)
    shape = _answer_shape(answer, replayer)
    return Skeleton(segment, holes, shape) if shape is not None and segment.nodes else None


class _HoleRecorder(Recorder):
    """Records calls with holes; ``Skeleton.fill`` digests them. Holes in lists and dicts are not supported."""

    def digest_call(self, task: str, inputs: dict[str, Any]) -> str:
        return call_digest(task, {name: None if type(value) is Hole else value for name, value in inputs.items()})


def _answer_shape(answer: Any, maker: ReplaySession) -> _AnswerShape | None:
    """Return the shape of ``answer``; None unless all its values are unchanged results of ``maker``."""
    if not isinstance(answer, BaseModel) or answer.model_extra:
        return None
    present_values = {name: value for name, value in answer.__dict__.items() if value is not None}
    if not all(
        type(value) is Result and value.maker is maker and not value.is_transformed for value in present_values.values()
    ):
        return None
    results = {
        name: Result(value.task, value.origin, value.kind, value.element) for name, value in present_values.items()
    }
    template = answer.model_copy()
    template.__dict__.update(results)
    return _AnswerShape(template, tuple(results.items()))


def _bind_result(result: Result, sources: Mapping[tuple[int, str], Any]) -> Result:
    bound = Result(result.task, result.origin, result.kind, result.element)
    bound.source = sources.get(result.origin)
    return bound


def _count_equal_calls(nodes: list[GraphNode]) -> None:
    """Number equal calls as ``Recorder`` does, so that their random numbers differ."""
    equal: dict[str, int] = {}
    for index, node in enumerate(nodes):
        salt = equal.get(node.digest, 0)
        equal[node.digest] = salt + 1
        if node.salt != salt:
            nodes[index] = msgspec.structs.replace(node, salt=salt)
