"""Random graphs of a deterministic ``invoke``: recorded equally, replayed, serialised, and told from others."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnibus import graph
from omnibus.errors import ReplayMismatch
from omnibus.graph import WIRE_VERSION, Invocation, find_refs
from omnibus.task import Segment, record, replay
from tests.property.drawn import Drawn, Log, WalkRequest
from tests.property.programs import Program, draw_programs

DRAWN = settings(max_examples=60, deadline=None)
STATIC = draw_programs(static=True)


def make_point(site: int) -> float:
    return site * 0.37 % 1.0


def record_program(program: Program) -> Segment:
    return record(Drawn().invoke, WalkRequest(program, Log()), make_point)


def replay_program(program: Program, segment: Segment) -> Any:
    return replay(Drawn().invoke, WalkRequest(program, Log()), segment, {})


@DRAWN
@given(STATIC)
def test_record_and_replay_agree(program: Program):
    segment = record_program(program)

    answer = replay_program(program, segment)

    assert record_program(program) == segment
    [rest] = answer["rest"]
    assert {result.origin for result, _ in [*answer["first"], *rest["more"]]} == set(segment.outputs)


@DRAWN
@given(STATIC)
def test_a_recorded_graph_survives_the_wire_and_is_in_order(program: Program):
    segment = record_program(program)
    count = len(segment.nodes)
    document = Invocation(
        WIRE_VERSION, "g-0-0", "app", "m", "t", "p", 1, 2, 3.0, 4.0, "r", segment.nodes, segment.outputs, ("o",) * count,
        ("x",) * count, choices=segment.choices,
    )  # fmt: skip

    copy = graph.decode_invocation(graph.encode_invocation(document))

    assert copy == document
    for index, node in enumerate(copy.nodes):
        assert set(node.uses) == {reference for value in node.inputs.values() for reference in find_refs(value)}
        assert all(source < index for source, _ in node.uses)


@DRAWN
@given(STATIC)
def test_digests_and_salts_tell_calls_apart(program: Program):
    nodes = record_program(program).nodes

    for one in nodes:
        for two in nodes:
            alike = (one.task, msgspec.json.encode(one.inputs)) == (two.task, msgspec.json.encode(two.inputs))
            assert (one.digest == two.digest) == alike
    assert len({(node.digest, node.salt) for node in nodes}) == len(nodes)


def change_segment(segment: Segment, how: str, at: int) -> Segment:
    """Return ``segment`` with one change in it."""
    nodes = list(segment.nodes)
    node = nodes[at]
    if how == "another task":
        nodes[at] = msgspec.structs.replace(node, task="dance")
    elif how == "another input":
        nodes[at] = msgspec.structs.replace(node, inputs={**node.inputs, next(iter(node.inputs)): "new"})
    elif how == "an input less":
        nodes[at] = msgspec.structs.replace(node, inputs=dict(list(node.inputs.items())[1:]))
    elif how == "a call more":
        nodes.append(node)
    elif how == "a call less":
        del nodes[at]
    outputs = (*segment.outputs, (at, "other")) if how == "another output" else segment.outputs
    return msgspec.structs.replace(segment, nodes=tuple(nodes), outputs=outputs)


HOW = st.sampled_from(
    ["another task", "another input", "an input less", "a call more", "a call less", "another output"]
)


@DRAWN
@given(STATIC, HOW, st.integers(0, 99))
def test_any_other_graph_is_refused(program: Program, how: str, at: int):
    segment = record_program(program)

    with pytest.raises(ReplayMismatch):
        replay_program(program, change_segment(segment, how, at % len(segment.nodes)))
