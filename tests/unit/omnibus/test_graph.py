"""Invocations as documents: round trips, references, digests, rejections."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnibus import graph
from omnibus.errors import ProtocolError
from omnibus.graph import HANDLE, WIRE_VERSION, GraphNode, Invocation, as_ref, call_digest, find_refs, make_ref


def make_node(task: str, uses: tuple[tuple[int, str], ...] = (), **inputs: Any) -> GraphNode:
    return GraphNode(task, task, inputs, call_digest(task, inputs), uses)


def make_invocation(*nodes: GraphNode, **changes: Any) -> Invocation:
    fields: dict[str, Any] = {
        "v": WIRE_VERSION, "id": "g-0-1", "app": "chat", "model": "m", "type": "a+b", "path": "A>B", "epoch": 3,
        "seed": 7, "created": 1000.0, "deadline": 1120.0, "reply": "omnibus.reply.g", "nodes": nodes,
        "outputs": ((len(nodes) - 1, "y"),),
        "options": tuple("A" for _ in nodes), "route": tuple("a-0" for _ in nodes),
    }  # fmt: skip
    return Invocation(**{**fields, **changes})


def make_chain() -> Invocation:
    """Return a chain. Node a feeds b twice and c once; b feeds c."""
    return make_invocation(
        make_node("a", x=1),
        make_node("b", ((0, "y"),), left=make_ref(0, "y"), right=[make_ref(0, "y"), 2]),
        make_node(
            "c",
            ((0, "y"), (1, "y"), (1, "z")),
            many={"of": [make_ref(0, "y"), make_ref(1, "y")]},
            more=make_ref(1, "z"),
        ),
    )


def encode_changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(graph.encode_invocation(make_chain())), **fields}).encode()


def test_an_invocation_survives_the_wire():
    assert graph.decode_invocation(graph.encode_invocation(make_chain())) == make_chain()


def test_an_invocation_is_one_line_of_json():
    body = graph.encode_invocation(make_chain())

    assert b"\n" not in body
    assert json.loads(body)["nodes"][1]["inputs"] == {"left": {"$ref": [0, "y"]}, "right": [{"$ref": [0, "y"]}, 2]}


def test_consumers_are_named_once_per_output():
    assert make_chain().find_consumers(0) == {"y": [1, 2]}
    assert make_chain().find_consumers(1) == {"y": [2], "z": [2]}
    assert make_chain().find_consumers(2) == {}


@pytest.mark.parametrize(
    ("value", "expected_refs"),
    [
        (make_ref(3, "y"), [(3, "y")]),
        ([make_ref(0, "a"), {"deep": [make_ref(1, "b")]}], [(0, "a"), (1, "b")]),
        ({"$ref": [0, "a"], "and": 1}, []),
        ("$ref", []),
        (None, []),
    ],
)
def test_references_are_found_at_any_depth(value: Any, expected_refs: list[tuple[int, str]]):
    assert list(find_refs(value)) == expected_refs


def test_only_a_reference_is_a_reference():
    assert as_ref(make_ref(1, "x")) == (1, "x")
    assert as_ref({"$ref": [1, "x"], "more": 0}) is None
    assert as_ref([1, "x"]) is None
    assert as_ref({"$ref": "#/$defs/Node"}) is None
    assert list(find_refs({"json": {"items": {"$ref": "#/$defs/Node"}}})) == []


def test_another_version_is_named():
    with pytest.raises(ProtocolError, match="version 7"):
        graph.decode_invocation(encode_changed(v=7))


def test_another_version_is_named_before_its_new_fields():
    with pytest.raises(ProtocolError, match="it says version 7"):
        graph.decode_invocation(encode_changed(v=7, colour="blue"))


def test_an_unknown_field_is_named():
    with pytest.raises(ProtocolError, match="colour"):
        graph.decode_invocation(encode_changed(colour="blue"))


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{}", b"{", b'{"v":1}', b'{"v":[1]}', b"\xff"])
def test_a_broken_document_is_refused(body: bytes):
    with pytest.raises(ProtocolError, match="not an invocation"):
        graph.decode_invocation(body)


@pytest.mark.parametrize(
    "fields",
    [
        {"route": ["a-0", "a-0"]},
        {"options": []},
        {"outputs": [[3, "y"]]},
        {"outputs": [[-1, "y"]]},
        {"nodes": []},
    ],
    ids=str,
)
def test_a_document_whose_parts_do_not_fit_is_refused(fields: dict[str, Any]):
    with pytest.raises(ProtocolError):
        graph.decode_invocation(encode_changed(**fields))


@pytest.mark.parametrize("name", ["", "a b", "a\r\nPUB x 0\r\n", "a\n", "*", ">", "é", "a\x00"])
@pytest.mark.parametrize("field", ["id", "reply", "route"])
def test_what_would_break_a_subject_is_refused(field: str, name: str):
    with pytest.raises(ProtocolError, match="subjects"):
        graph.decode_invocation(encode_changed(**{field: [name, name, name] if field == "route" else name}))


def test_a_task_that_would_break_a_subject_is_refused():
    with pytest.raises(ProtocolError, match="subjects"):
        graph.decode_invocation(graph.encode_invocation(make_invocation(make_node("a b"))))


@pytest.mark.parametrize("uses", [(1, "y"), (2, "y"), (-1, "y")])
def test_a_node_that_waits_for_itself_or_a_later_one_is_refused(uses: tuple[int, str]):
    body = graph.encode_invocation(make_invocation(make_node("a"), make_node("b", (uses,), x=make_ref(*uses))))

    with pytest.raises(ProtocolError, match="node 1"):
        graph.decode_invocation(body)


def test_equal_calls_have_equal_digests_whatever_the_order_of_names():
    assert call_digest("t", {"a": 1, "b": [2]}) == call_digest("t", {"b": [2], "a": 1})


@pytest.mark.parametrize(
    "other", [("u", {"a": 1}), ("t", {"a": 2}), ("t", {"a": 1.5}), ("t", {"b": 1}), ("t", {"a": 1, "b": None})]
)
def test_another_task_or_input_has_another_digest(other: tuple[str, dict[str, Any]]):
    assert call_digest(*other) != call_digest("t", {"a": 1})


def make_media(offset: int, content: str) -> dict[str, Any]:
    return {HANDLE: {"id": offset, "offset": offset}, "sha256": content, "modality": "image"}


def test_where_bytes_lie_does_not_change_a_digest_but_what_they_are_does():
    assert call_digest("t", {"media": make_media(1, "aa")}) == call_digest("t", {"media": make_media(2, "aa")})
    assert call_digest("t", {"media": [make_media(1, "aa")]}) == call_digest("t", {"media": [make_media(2, "aa")]})
    assert call_digest("t", {"media": make_media(1, "aa")}) != call_digest("t", {"media": make_media(1, "bb")})


def test_json_that_was_encoded_before_travels_as_it_is():
    request = make_invocation(make_node("a", messages=msgspec.Raw(b'[{"role":"user","content":"hi"}]')))

    assert graph.decode_invocation(graph.encode_invocation(request)).nodes[0].inputs["messages"] == [
        {"role": "user", "content": "hi"}
    ]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(), JSON, max_size=4), st.text(), st.integers(0, 2**63 - 1))
def test_any_literal_survives_the_wire(inputs: dict[str, Any], model: str, seed: int):
    request = make_invocation(make_node("a"), model=model, seed=seed)
    request = msgspec.structs.replace(request, nodes=(graph.with_inputs(request.nodes[0], inputs),))

    assert graph.decode_invocation(graph.encode_invocation(request)) == request


def test_an_invocation_of_a_known_shape_still_needs_an_id_that_can_be_addressed():
    graph.decode_invocation(graph.encode_invocation(make_chain()))

    for id in ("", "a b", "a.*", ">"):
        with pytest.raises(ProtocolError, match="become subjects"):
            graph.decode_invocation(graph.encode_invocation(msgspec.structs.replace(make_chain(), id=id)))
