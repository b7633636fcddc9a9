import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnibus.errors import ProtocolError
from omnibus.tensors.protocol import (
    FRAME_BYTES,
    VERSION,
    FrameReader,
    SidecarFrame,
    Verb,
    VersionMismatch,
    encode_block,
    encode_frame,
    encode_tag,
    encode_text,
)

U64 = st.integers(0, 2**64 - 1)
TIMES = st.floats(-1e12, 1e12)
FRAMES = st.builds(
    SidecarFrame,
    verb=st.sampled_from([int(verb) for verb in Verb]),
    request=st.integers(0, 2**32 - 1),
    readers=st.integers(0, 2**16 - 1),
    block=U64,
    generation=U64,
    nbytes=U64,
    offset=U64,
    deadline=TIMES,
    wait=TIMES,
    text=st.binary(max_size=64),
)


@given(st.lists(FRAMES, max_size=6), st.lists(st.integers(0, 6 * FRAME_BYTES), max_size=4))
def test_frames_survive_any_cut_of_the_stream(frames, cuts):
    stream, reader = b"".join(map(encode_frame, frames)), FrameReader()

    edges = [0, *sorted(cuts), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(edges)]

    assert [frame for piece in pieces for frame in reader.feed(piece)] == frames


def test_the_layout_is_pinned():
    frame = SidecarFrame(Verb.ALLOCATE, 7, 2, 3, 4, 5, 6, 1.5, 2.5, b"inv")

    frame_bytes = struct.pack("<HBBIHHxxxxQQQQdd64s", 0x4F4D, 2, 3, 7, 2, 2, 3, 4, 5, 6, 1.5, 2.5, b"inv")
    assert encode_frame(frame) == frame_bytes
    assert FRAME_BYTES == 128


def test_a_frame_that_names_a_block_has_a_shorter_way_to_the_same_bytes():
    assert encode_block(Verb.EXTEND, 3, 4, 5.0) == encode_frame(
        SidecarFrame(Verb.EXTEND, block=3, generation=4, deadline=5.0)
    )


@given(st.binary(max_size=300))
def test_json_travels_in_frames_that_count_down(body):
    frames = list(FrameReader().feed(encode_text(9, body)))

    assert b"".join(frame.text for frame in frames) == body
    assert [frame.nbytes == 0 for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert {frame.request for frame in frames} == {9}


def _break_frame(offset: int, data: bytes) -> bytes:
    raw = bytearray(encode_frame(SidecarFrame(Verb.STATS)))
    raw[offset : offset + len(data)] = data
    return bytes(raw)


@pytest.mark.parametrize(
    "raw",
    [
        _break_frame(0, b"GE"),
        _break_frame(2, bytes([200])),
        _break_frame(3, bytes([65])),
        _break_frame(48, struct.pack("<d", float("nan"))),
        _break_frame(56, struct.pack("<d", float("inf"))),
    ],
    ids=["magic", "verb", "length", "deadline", "wait"],
)
def test_a_malformed_frame_is_refused(raw):
    with pytest.raises(ProtocolError):
        list(FrameReader().feed(raw))


def test_a_foreign_version_is_named():
    with pytest.raises(VersionMismatch, match=f"version 9 .* this process has {VERSION}"):
        list(FrameReader().feed(_break_frame(8, struct.pack("<H", 9))))


@pytest.mark.parametrize("text", ["", "x" * 65, "ü" * 33])
def test_a_name_that_does_not_fit_a_frame_is_refused(text):
    with pytest.raises(ProtocolError):
        encode_tag(text)
