"""Damaged golden files are rejected with one error that contains the reason.

They are not invocations of this wire version.
"""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnibus import graph
from omnibus.errors import ProtocolError
from omnibus.graph import WIRE_VERSION, GraphNode, Invocation
from tests.golden import corpus

ALL = corpus.read_invocations()
LONGEST = 500  # characters of an error, so a log does not contain the whole document

each_body = pytest.mark.parametrize("body", ALL.values(), ids=ALL.keys())


def read_refusal(body: bytes) -> str:
    """Return the error for ``body``; fails if it is accepted, or rejected in another way."""
    with pytest.raises(ProtocolError) as error:
        graph.decode_invocation(body)
    assert 0 < len(str(error.value)) < LONGEST
    return str(error.value)


def change_fields(body: bytes, **fields: Any) -> bytes:
    return json.dumps({**json.loads(body), **fields}).encode()


# Versions

VERSIONS: dict[str, Any] = {"the next": 2, "a far one": 99, "none yet": 0, "a string": "1", "a list": [2], "null": None}
NEWS: dict[str, dict[str, Any]] = {"as is": {}, "new field": {"colour": "blue"}, "other shape": {"nodes": {"a": []}}}


@pytest.mark.parametrize("news", NEWS.values(), ids=NEWS.keys())
@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS.keys())
def test_another_version_is_refused_and_both_versions_are_named(version: Any, news: dict[str, Any]):
    for body in ALL.values():
        message = read_refusal(change_fields(body, **news, v=version))

        assert f"version {json.dumps(version)}" in message
        assert f"wire version {WIRE_VERSION}:" in message or f"reads {WIRE_VERSION}:" in message


@each_body
def test_a_document_without_a_version_is_refused_and_that_is_said(body: bytes):
    message = read_refusal(json.dumps({key: value for key, value in json.loads(body).items() if key != "v"}).encode())

    assert f"wire version {WIRE_VERSION}: it says no version" in message


# Shapes


@each_body
def test_an_unknown_field_is_refused_wherever_it_is_and_named(body: bytes):
    first, *rest = json.loads(body)["nodes"]

    for other in ({"colour": 1}, {"nodes": [{**first, "colour": 1}, *rest]}):
        assert "colour" in read_refusal(change_fields(body, **other))


def of_another_type(value: Any) -> Any:
    return {"not": "this"} if not isinstance(value, dict) else "nor this"


@pytest.mark.parametrize("name", [field.name for field in msgspec.structs.fields(Invocation) if field.name != "v"])
def test_a_field_of_another_type_is_refused_and_named(name: str):
    for body in ALL.values():
        read = json.loads(graph.encode_invocation(graph.decode_invocation(body)))

        assert f"`$.{name}" in read_refusal(change_fields(body, **{name: of_another_type(read[name])}))


@pytest.mark.parametrize("name", [field.name for field in msgspec.structs.fields(GraphNode)])
def test_a_nodes_field_of_another_type_is_refused_and_named(name: str):
    for body in ALL.values():
        nodes = json.loads(graph.encode_invocation(graph.decode_invocation(body)))["nodes"]
        nodes[-1][name] = of_another_type(nodes[-1][name])

        assert f"`$.nodes[{len(nodes) - 1}].{name}" in read_refusal(change_fields(body, nodes=nodes))


# Bytes


@each_body
def test_a_document_that_was_cut_off_is_refused(body: bytes):
    for size in range(len(body)):
        read_refusal(body[:size])


@each_body
def test_a_document_with_a_byte_that_is_no_utf8_is_refused(body: bytes):
    for at in range(len(body)):
        read_refusal(body[:at] + b"\xff" + body[at + 1 :])


DEEP = {"lists": b"[" * 200_000, "closed lists": b"[" * 200_000 + b"]" * 200_000, "objects": b'{"a":' * 200_000}


@pytest.mark.parametrize("value", DEEP.values(), ids=DEEP.keys())
@pytest.mark.parametrize("field", [b'"inputs":{"x":', b'"colour":', b'"seed":', b'"nodes":['])
def test_a_document_nested_without_end_is_refused(field: bytes, value: bytes):
    for body in ALL.values():
        before, _, after = body.partition(b'"inputs":{')

        read_refusal(before + field + value + after)


HUGE = {
    "a number": ("epoch", "9" * 5000),
    "a fraction": ("created", "9" * 5000),
    "a list": ("outputs", "[" + ",".join(['[1000000,"text"]'] * 60_000) + "]"),
    "a route": ("route", "[" + ",".join(['"a"'] * 60_000) + "]"),
    "many nodes": ("nodes", "[" + ",".join(["{}"] * 60_000) + "]"),
    "a name": ("id", '"' + "a " * 60_000 + '"'),
    "a version": ("v", "9" * 5000),
}


@pytest.mark.parametrize(("name", "value"), HUGE.values(), ids=HUGE.keys())
def test_a_document_with_something_huge_is_refused_in_few_words(name: str, value: str):
    for body in ALL.values():
        read_refusal(change_fields(body, **{name: "HERE"}).replace(b'"HERE"', value.encode()))


def test_a_field_with_a_huge_name_is_refused_in_few_words():
    for body in ALL.values():
        read_refusal(change_fields(body, **{"colour" * 10_000: 1}))


# Anything

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(['"$ref"', '{"$ref": [0, "text"]}', '{"$ref": 5}', '{"$handle": {}}', '[[0, "text"]]']).map(
        json.loads
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def list_places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(value, key) for key in keys] + [place for key in keys for place in list_places(value[key])]


@st.composite
def changed_documents(draw: st.DrawFn) -> bytes:
    """A golden document with values replaced, removed, doubled and added."""
    document = json.loads(draw(st.sampled_from(list(ALL.values()))))
    for _ in range(draw(st.integers(1, 4))):
        where = list_places(document)
        container, key = where[draw(st.integers(0, len(where) - 1))]
        match draw(st.sampled_from(["replace", "remove", "double", "add"])):
            case "replace":
                container[key] = draw(JSON)
            case "remove":
                del container[key]
            case "double" if isinstance(container, list):
                container.insert(key, container[key])
            case _:
                if isinstance(container, dict):
                    container[draw(st.text(max_size=8))] = draw(JSON)
        if not document:
            break
    return json.dumps(document).encode()


@st.composite
def noisy_documents(draw: st.DrawFn) -> bytes:
    """A golden document with slices of its bytes replaced."""
    body = draw(st.sampled_from(list(ALL.values())))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(body)))
        end = draw(st.integers(start, min(len(body), start + 12)))
        body = (
            body[:start]
            + draw(st.binary(max_size=12) | st.sampled_from([b"{", b"]", b'"', b",", b"\\u00"]))
            + body[end:]
        )
    return body


def read_or_none(body: bytes) -> Invocation | None:
    """Return the invocation, or None if rejected; any other exception is a defect."""
    try:
        return graph.decode_invocation(body)
    except ProtocolError:
        return None


@settings(max_examples=500, deadline=None)
@given(changed_documents() | noisy_documents())
def test_whatever_comes_is_refused_or_can_be_worked_with(body: bytes):
    invocation = read_or_none(body)

    if invocation is None:
        assert read_refusal(body)
        return
    assert graph.decode_invocation(graph.encode_invocation(invocation)) == invocation
    for index in range(len(invocation.nodes)):
        assert 0 <= invocation.seed_of(index) < 2**63
        assert all(index < reader for readers in invocation.find_consumers(index).values() for reader in readers)
