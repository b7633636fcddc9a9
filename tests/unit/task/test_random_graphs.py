"""Whatever graph a deterministic ``invoke`` draws, it records alike and its replay verifies."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnibus import graph
from omnibus.errors import ReplayMismatch
from omnibus.graph import WIRE_VERSION, Invocation, refs
from omnibus.task import Recording, record, replay
from tests.unit.task.tasks import Result, Step, StepInput

LITERAL = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3) | st.floats(-2, 2)


@st.composite
def calls(draw: Any) -> list[tuple[int, list[Any], Any]]:
    """Per call: which task, references to earlier outputs, a literal."""
    count = draw(st.integers(1, 7))
    drawn = []
    for index in range(count):
        earlier = st.tuples(st.integers(0, index - 1), st.sampled_from(["y", "said"])) if index else st.nothing()
        drawn.append((draw(st.integers(0, 2)), draw(st.lists(earlier, max_size=3)) if index else [], draw(LITERAL)))
    return drawn


def drawn_by(plan: list[tuple[int, list[Any], Any]], returned: list[tuple[int, str]]) -> Callable[[Any], Any]:
    def invoke(request: Any) -> Any:
        made: list[Any] = []
        for which, earlier, literal in plan:
            task = Step(model="m", component=f"part{which}")
            given = [getattr(made[node], output) for node, output in earlier]
            made.append(task.invoke(StepInput(a=given[0] if given else request, b={"of": given}, many=[literal])))
        return [getattr(made[node], output) for node, output in returned]

    return invoke


@st.composite
def graphs(draw: Any) -> tuple[Any, list[tuple[int, str]]]:
    plan = draw(calls())
    asked = draw(st.lists(st.tuples(st.integers(0, len(plan) - 1), st.sampled_from(["y", "said"])), max_size=4))
    return plan, asked


def results(recording: Recording) -> dict[tuple[int, str], Result]:
    return {key: Result(*key) for key in recording.outputs}


def document(recording: Recording) -> Invocation:
    count = len(recording.nodes)
    return Invocation(
        WIRE_VERSION, "g-0-0", "app", "m", "t", "p", 1, 2, 3.0, 4.0, "r", recording.nodes, recording.outputs,
        ("o",) * count, ("x",) * count,
    )  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(graphs())
def test_record_and_replay_agree(drawn: tuple[Any, list[tuple[int, str]]]):
    invoke = drawn_by(*drawn)

    recording = record(invoke, "q")
    answer = replay(invoke, "q", recording.nodes, results(recording))

    assert record(invoke, "q") == recording
    assert [result.origin for result in answer] == drawn[1]
    assert recording.outputs == tuple(dict.fromkeys(drawn[1]))


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_a_recorded_graph_survives_the_wire_and_is_in_order(drawn: tuple[Any, list[tuple[int, str]]]):
    given = document(record(drawn_by(*drawn), "q"))

    again = graph.decode(graph.encode(given))

    assert again == given
    for index, node in enumerate(again.nodes):
        assert set(node.uses) == {found for value in node.inputs.values() for found in refs(value)}
        assert all(source < index for source, _ in node.uses)
    consumed = {(node, output) for node in range(len(again.nodes)) for output in again.consumers(node)}
    assert consumed == {use for node in again.nodes for use in node.uses}


@settings(max_examples=60, deadline=None)
@given(graphs(), st.data())
def test_any_other_graph_is_refused(drawn: tuple[Any, list[tuple[int, str]]], data: st.DataObject):
    plan, asked = drawn
    recording = record(drawn_by(plan, asked), "q")
    at = data.draw(st.integers(0, len(plan) - 1))
    which, earlier, literal = plan[at]
    others = {
        "another task": [*plan[:at], ((which + 1) % 3, earlier, literal), *plan[at + 1 :]],
        "another literal": [*plan[:at], (which, earlier, ["new"]), *plan[at + 1 :]],
        "a call more": [*plan, (0, [], None)],
    }
    changed = others[data.draw(st.sampled_from(sorted(others)))]

    with pytest.raises(ReplayMismatch):
        replay(drawn_by(changed, asked), "q", recording.nodes, results(recording))


@settings(max_examples=30, deadline=None)
@given(graphs())
def test_digests_tell_calls_apart(drawn: tuple[Any, list[tuple[int, str]]]):
    nodes = record(drawn_by(*drawn), "q").nodes

    for one in nodes:
        for two in nodes:
            alike = (one.task, msgspec.json.encode(one.inputs)) == (two.task, msgspec.json.encode(two.inputs))
            assert (one.digest == two.digest) == alike
