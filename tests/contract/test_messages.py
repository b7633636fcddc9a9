"""Messages of every released wire version stay readable.

``tests/golden/corpus.py`` describes the files.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnibus import graph
from omnibus.bus import messages
from omnibus.errors import ProtocolError
from omnibus.graph import WIRE_VERSION
from tests.golden import corpus
from tests.golden.corpus import REFUSED, contains_part

FILES = corpus.list_messages()

#: Reader and writer by the beginning of a file's name.
KINDS: dict[str, tuple[Callable[[bytes], Any], Callable[[Any], bytes]]] = {
    "invocation": (graph.decode_invocation, graph.encode_invocation),
    "reply": (
        messages.decode_replies,
        lambda found: next(messages.join_frames([*map(messages.encode, found)], 1 << 16)),
    ),
    "edge": (messages.decode_edges, lambda found: next(messages.join_frames([*map(messages.encode, found)], 1 << 16))),
    "end": (messages.decode_end, messages.encode),
    "status": (messages.decode_status, messages.encode),
    "plan": (messages.decode_plan_event, messages.encode),
}


def name_of_file(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def codec_of(path: Path) -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    return KINDS[path.stem.partition("_")[0]]


def test_every_kind_of_message_is_kept_in_the_current_version():
    names = {path.stem for path in FILES if path.parent.name == f"v{WIRE_VERSION}"}

    replies = {f"reply_{tag}" for tag in ("chunk", "rows", "accepted", "busy", "done", "failed")}
    edges = {f"edge_{tag}" for tag in ("chunk", "done", "end")}
    assert names == {"invocation_vl_image", "invocation_omni_speech", "end", "status", "plan_event"} | replies | edges


@pytest.mark.parametrize("path", FILES, ids=name_of_file)
def test_what_was_written_once_is_read_for_ever(path: Path):
    decode, _ = codec_of(path)

    if path.parent.name in REFUSED:
        with pytest.raises(ProtocolError, match=path.parent.name.removeprefix("v")):
            decode(path.read_bytes())
    else:
        assert decode(path.read_bytes())


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name not in REFUSED], ids=name_of_file)
def test_nothing_that_was_written_is_lost_when_it_is_read(path: Path):
    decode, encode = codec_of(path)
    document = json.loads(path.read_bytes())

    again = json.loads(encode(decode(path.read_bytes())))

    assert contains_part(again, document)


@pytest.mark.parametrize("news", [{}, {"colour": "blue"}], ids=["known fields", "new fields"])
@pytest.mark.parametrize("path", FILES, ids=name_of_file)
def test_a_message_of_another_version_is_refused_and_both_versions_are_named(path: Path, news: dict[str, str]):
    decode, _ = codec_of(path)
    body = json.dumps({**json.loads(path.read_bytes()), **news, "v": 99}).encode()

    with pytest.raises(ProtocolError) as error:
        decode(body)

    assert "version 99" in str(error.value)
    assert str(WIRE_VERSION) in str(error.value).replace("99", "")


NOISE = {
    "nothing": b"",
    "no object": b"[]",
    "no UTF-8": b'{"v":1,"t":"\xff"}',
    "too deep": b'{"v":1,"t":' + b"[" * 200_000,
    "cut off": b'{"v":1,',
    "no JSON": b"PING\r\n",
}


@pytest.mark.parametrize("body", NOISE.values(), ids=NOISE.keys())
@pytest.mark.parametrize("name", KINDS)
def test_what_is_no_message_is_refused(name: str, body: bytes):
    decode, _ = KINDS[name]

    with pytest.raises(ProtocolError):
        decode(body)
