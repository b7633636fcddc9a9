"""Waterfalls from records: the meaning of every field, and impossible times."""

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnibus.recording.waterfall import GATEWAY, PHASES, Edge, Input, Move, Phase, Pull, Waterfall, build_waterfall
from tests.unit.cli.documents import make_end, make_hop, make_invocation


def make_waterfall(**changes: Any) -> Waterfall:
    return build_waterfall(make_invocation(), make_end(**changes))


def test_a_request_is_told_in_brief():
    brief = msgspec.to_builtins(make_waterfall().summary)

    assert brief == {
        "id": "g-0-1", "app": "chat", "model": "m", "type": "vision+thinker", "path": "E>L", "epoch": 3,
        "status": "done", "created": 1000.0, "seconds": 1.0, "first": 0.5, "attempts": 1, "replay_of": "",
        "parent": "", "code": "",
    }  # fmt: skip


def test_what_has_not_ended_is_running_and_its_nodes_are_open():
    whole = build_waterfall(make_invocation(), None)

    assert (whole.summary.status, whole.summary.seconds, whole.summary.first) == ("running", None, None)
    assert [(row.state, row.taken, row.phases) for row in whole.nodes] == [("open", None, ())] * 3
    assert (whole.outcome, whole.problem, whole.moves) == (None, None, ())


def test_each_phase_of_a_node_ends_where_the_next_begins():
    assert [[(phase.name, phase.start, phase.end) for phase in row.phases] for row in make_waterfall().nodes] == [
        [("run", 0.0, 0.25)],
        [("dispatch", 0.0, 0.1), ("inputs", 0.1, 0.2), ("queue", 0.2, 0.25), ("run", 0.25, 0.3)],
        [("dispatch", 0.0, 0.05), ("inputs", 0.05, 0.4), ("run", 0.4, 0.5), ("output", 0.5, 1.0)],
    ]


def test_an_edge_took_from_the_first_output_to_its_arrival():
    assert make_waterfall().edges == (
        Edge(0, "embedding", 2, local=False, sent=0.25, arrived=0.25, seconds=0.0),
        Edge(1, "embedding", 2, local=False, sent=0.3, arrived=0.4, seconds=0.1),
    )


def test_pulls_of_nodes_and_of_the_gateway_are_told_with_the_edge_that_crossed():
    hops = [
        make_hop(0, 0, 0, 0.25, 0.25, pulls=[[-1, "", "n1", "n2", 2048, 0.004]]),
        make_hop(2, 0.05, 0.4, 0.5, 1.0, pulls=[[0, "embedding", "n2", "n3", 4096, 0.01]]),
    ]
    whole = make_waterfall(hops=hops, pulls=[[2, "audio", "n3", "n1", 8192, 0.02]])

    assert whole.pulls == (
        Pull(GATEWAY, "", 0, "n1", "n2", 2048, 0.004),
        Pull(0, "embedding", 2, "n2", "n3", 4096, 0.01),
        Pull(2, "audio", GATEWAY, "n3", "n1", 8192, 0.02),
    )
    assert make_waterfall().pulls == ()


def test_nodes_of_one_executor_have_local_edges():
    assert [edge.local for edge in make_waterfall(route=["x", "y", "x"]).edges] == [True, False]


def test_the_last_attempt_is_shown_and_the_others_as_moves():
    moves = [{"attempt": 0, "at": 1000.02, "reason": "gone", "executor": "e-0", "message": "it is gone"}]
    whole = make_waterfall(moves=moves, attempts=2, route=["e-1", "e-1", "l-1"], options=["F", "F", "L"], path="F>L")

    assert whole.moves == (Move(0, 0.02, "gone", "e-0", "it is gone"),)
    assert (whole.summary.path, whole.summary.attempts) == ("F>L", 2)
    assert [(row.executor, row.option) for row in whole.nodes] == [("e-1", "F"), ("e-1", "F"), ("l-1", "L")]
    assert whole.nodes[1].phases[0] == Phase("dispatch", 0.02, 0.1)


@pytest.mark.parametrize(
    ("changes", "states"),
    [
        ({"node": 1}, ["done", "failed", "stopped"]),
        ({"problem": {"code": "stage_unavailable", "message": "x", "executor": "l-1"}}, ["done", "stopped", "failed"]),
        ({"problem": {"code": "deadline_exceeded", "message": "x"}}, ["done", "stopped", "stopped"]),
    ],
    ids=["told", "executor gone", "nobody's fault"],
)
def test_a_failure_says_which_node_failed(changes: dict[str, Any], states: list[str]):
    assert [
        row.state for row in make_waterfall(hops=[make_hop(0, 0, 0, 0, 0)], status="failed", **changes).nodes
    ] == states


def test_inputs_are_told_by_kind_and_size():
    rows = make_waterfall().nodes

    assert rows[0].inputs == (Input("media", "media", 2048, "aa", "image/png"),)
    assert rows[2].inputs == (
        Input("items", "nodes"),
        Input("messages", "json", 17),
        Input("prompt", "text", 3),
        Input("top", "number", 1),
    )
    assert rows[0].nbytes == 4096


def test_nothing_of_what_users_wrote_or_got_is_in_it():
    nodes = make_invocation().nodes
    secret = msgspec.structs.replace(
        nodes[2], inputs={"messages": [{"content": "secret"}], "prompt": "secret", "deep": {"a": ["secret"]}}, uses=()
    )
    whole = build_waterfall(
        msgspec.structs.replace(make_invocation(), nodes=(*nodes[:2], secret)), make_end(answer={"text": "secret"})
    )

    assert b"secret" not in msgspec.json.encode(whole)
    assert whole.outcome is not None
    assert whole.outcome.characters == len("secret")


def test_a_record_of_digests_says_so():
    [first, *rest] = make_invocation().nodes
    digest_node = msgspec.structs.replace(first, inputs={"prompt": {"$digest": "ab", "nbytes": 9}})
    whole = build_waterfall(msgspec.structs.replace(make_invocation(), nodes=(digest_node, *rest)), make_end())

    assert (whole.record, make_waterfall().record) == ("digest", "full")
    assert whole.nodes[0].inputs == (Input("prompt", "json", 9, "ab"),)


def test_its_json_is_what_it_was():
    whole = json.loads(msgspec.json.encode(make_waterfall()))

    assert sorted(whole) == [
        "allowed", "called", "caller", "edges", "moves", "nodes", "outcome", "problem", "pulls", "record", "seed", "segments", "step",
        "summary", "usage", "v",
    ]  # fmt: skip
    assert whole["nodes"][0] == {
        "node": 0, "component": "vision", "task": "vision-m", "model": "m", "option": "E", "executor": "e-0",
        "state": "done", "taken": 0.0, "ready": 0.0, "began": None, "first": 0.25, "end": 0.25, "nbytes": 4096,
        "phases": [{"name": "run", "start": 0.0, "end": 0.25}],
        "inputs": [{"name": "media", "kind": "media", "nbytes": 2048, "sha256": "aa", "mime": "image/png"}],
    }  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(make_waterfall()), type=Waterfall) == make_waterfall()


times = st.floats(-2, 4)


@given(st.lists(times, min_size=5, max_size=5), times)
def test_phases_never_overlap_whatever_the_clocks_say(moments: list[float], sent: float):
    taken_at, ready, first, end, began = moments
    moves = [{"attempt": 0, "at": 1000 + sent, "reason": "gap"}]
    one = make_hop(0, taken_at, ready, first, end, began=1000 + began)
    phases = make_waterfall(hops=[one], moves=moves).nodes[0].phases

    assert [phase.name for phase in phases] == [name for name in PHASES if name in {phase.name for phase in phases}]
    assert all(phase.start < phase.end for phase in phases)
    assert all(before.end == after.start for before, after in pairwise(phases))


def test_only_nodes_that_began_again_were_sent_again():
    moves = [{"attempt": 0, "at": 1000.02, "reason": "gone", "executor": "l-0", "again": [2], "resumed": {"2.text": 9}}]

    whole = make_waterfall(moves=moves, attempts=2)

    assert (whole.moves[0].again, whole.moves[0].resumed) == ((2,), {"2.text": 9})
    assert [row.phases[0].start for row in whole.nodes] == [0.0, 0.0, 0.02]
