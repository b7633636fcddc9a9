"""Recorded invocations of every released wire version stay readable.

``tests/golden/corpus.py`` describes the files.
"""

import hashlib
import json
from typing import Any

import msgspec
import pytest

from omnibus import graph
from omnibus.graph import find_refs
from omnibus.recording.records import EndRecord
from tests.golden import corpus
from tests.golden.corpus import MEDIA, Golden, contains_part

ALL = corpus.read_invocations()
RECORDED = corpus.read_recorded()
LIMIT = 550_000  # bytes of all golden files together

each_body = pytest.mark.parametrize("body", ALL.values(), ids=ALL.keys())
each_recorded = pytest.mark.parametrize("golden", RECORDED, ids=[golden.name for golden in RECORDED])

#: Fields added after the first documents, with the default for documents that lack them. A default here must never
#: change, because that would change records in users' streams.
SINCE_INVOCATION: dict[str, Any] = {
    "parent": "",
    "step": 0,
    "choices": (),
    "retained": (),
    "attempts": (),
    "resumes": (),
    "places": (),
    "home": "",
    "sent": 0.0,
}
SINCE_NODE: dict[str, Any] = {"model": "", "salt": 0}


@each_body
def test_a_recorded_invocation_is_read_and_written_with_the_same_meaning(body: bytes):
    read = graph.decode_invocation(body)

    again = graph.encode_invocation(read)

    assert contains_part(json.loads(again), json.loads(body))
    assert graph.decode_invocation(again) == read


def missing_fields(read: msgspec.Struct, document: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of ``read`` that are not in ``document``."""
    return {key: value for key, value in msgspec.structs.asdict(read).items() if key not in document}


@each_body
def test_what_a_document_does_not_say_means_what_it_meant_when_it_was_written(body: bytes):
    document, read = json.loads(body), graph.decode_invocation(body)

    assert missing_fields(read, document).items() <= SINCE_INVOCATION.items()
    for node, written_node in zip(read.nodes, document["nodes"], strict=True):
        assert missing_fields(node, written_node).items() <= SINCE_NODE.items()


@each_body
def test_a_node_that_says_no_salt_draws_the_numbers_of_the_invocations_own_seed(body: bytes):
    read = graph.decode_invocation(body)

    for index, node in enumerate(json.loads(body)["nodes"]):
        assert "salt" in node or read.seed_of(index) == read.seed


@each_body
def test_a_recorded_call_still_has_its_digest(body: bytes):
    """An equal call must keep its digest, which identifies it in records."""
    complete = [
        node for node in graph.decode_invocation(body).nodes if b"$digest" not in msgspec.json.encode(node.inputs)
    ]

    assert complete
    for node in complete:
        assert graph.call_digest(node.task, node.inputs) == node.digest


@each_body
def test_references_are_told_in_the_order_of_the_inputs_and_name_earlier_nodes(body: bytes):
    for index, node in enumerate(graph.decode_invocation(body).nodes):
        references = [key for value in node.inputs.values() for key in find_refs(value)]

        assert list(node.uses) == list(dict.fromkeys(references))
        assert all(source < index for source, _ in references)


@each_body
def test_consumers_are_the_nodes_that_refer_to_an_output(body: bytes):
    read = graph.decode_invocation(body)
    readers: dict[tuple[int, str], list[int]] = {}
    for index, node in enumerate(read.nodes):
        for key in dict.fromkeys(key for value in node.inputs.values() for key in find_refs(value)):
            readers.setdefault(key, []).append(index)

    consumers = {
        (index, name): indexes
        for index in range(len(read.nodes))
        for name, indexes in read.find_consumers(index).items()
    }

    assert consumers == readers
    assert {index for index, _ in [*readers, *read.outputs]} == set(range(len(read.nodes)))  # each node has a reader


# Ends and requirements


@each_recorded
def test_a_recorded_end_is_read_and_nothing_of_it_is_lost(golden: Golden):
    read = msgspec.json.decode(golden.end_body, type=EndRecord)

    assert contains_part(json.loads(msgspec.json.encode(read)), golden.end)


@each_recorded
def test_a_recorded_end_belongs_to_its_invocation(golden: Golden):
    begin, end = graph.decode_invocation(golden.body), msgspec.json.decode(golden.end_body, type=EndRecord)

    assert (end.inv, end.attempts, end.path, end.route) == (begin.id, begin.attempt + 1, begin.path, begin.route)
    assert begin.created == end.created <= end.finished < begin.deadline
    assert [(hop.node, hop.executor) for hop in end.hops] == (list(enumerate(end.route)) if golden.done else [])


def test_every_way_that_an_invocation_can_take_is_kept():
    bodies = {golden.name.partition("_")[2]: graph.decode_invocation(golden.body) for golden in RECORDED}
    types = {body.type for body in bodies.values()}
    inputs = {literal["modality"] for golden in RECORDED for literal in corpus.find_handles(golden.document)}

    assert {"thinker", "vision+thinker", "audio+thinker", "vision+audio+thinker+talker+vocoder"} <= types
    assert {"text", "image", "video", "audio"} <= inputs
    assert {"done", "failed", "cancelled"} <= {golden.end["status"] for golden in RECORDED}
    assert {golden.full for golden in RECORDED} == {True, False}
    assert {0, 1} <= {body.attempt for body in bodies.values()}
    assert any(body.replay_of for body in bodies.values())
    assert {"E>L", "EL", "Th>Ta>V", "M"} <= {body.path for body in bodies.values()}


def test_the_media_that_recorded_invocations_name_are_kept_and_no_others():
    hashes = {sha256 for golden in RECORDED for sha256 in golden.media if golden.full}
    sizes = {
        literal["sha256"]: literal["nbytes"] for golden in RECORDED for literal in corpus.find_handles(golden.document)
    }

    assert {path.name for path in MEDIA.iterdir()} == hashes
    for path in MEDIA.iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        assert path.stat().st_size == sizes.get(path.name, path.stat().st_size)


def test_the_golden_files_stay_small():
    assert (
        sum(path.stat().st_size for path in corpus.HERE.rglob("*") if path.suffix != ".pyc" and path.is_file()) < LIMIT
    )
