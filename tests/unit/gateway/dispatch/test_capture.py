"""Values between nodes as bytes and back, and rejection of malformed bytes."""

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnibus.bus.messages import Chunk
from omnibus.errors import ProtocolError
from omnibus.tensors.handle import Handle
from omnibus_gateway.dispatch.retention import OutputCapture, RecordedChunk, pack_chunks, unpack_chunks

DTYPES = st.sampled_from(["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
DATA = st.dictionaries(st.text(max_size=5), st.one_of(st.integers(-5, 5), st.text(max_size=5)), max_size=3)


@st.composite
def draw_recorded_chunk(draw: Any) -> RecordedChunk:
    array = None
    if draw(st.booleans()):
        shape = draw(SHAPES)
        array = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape).astype(draw(DTYPES))
    return RecordedChunk(draw(DATA), array, draw(st.booleans()), draw(st.booleans()))


def are_same(one: RecordedChunk, other: RecordedChunk) -> bool:
    if (one.array is None) != (other.array is None) or one._replace(array=None) != other._replace(array=None):
        return False
    if one.array is None or other.array is None:
        return True
    return (one.array.dtype, one.array.shape) == (other.array.dtype, other.array.shape) and bool(
        (one.array == other.array).all()
    )


@given(st.lists(draw_recorded_chunk(), max_size=5))
def test_what_is_packed_comes_back_as_it_was(given: list[RecordedChunk]):
    unpacked_chunks = unpack_chunks(pack_chunks(given))

    assert len(unpacked_chunks) == len(given)
    assert all(map(are_same, unpacked_chunks, given))


@given(st.lists(draw_recorded_chunk(), max_size=3), st.data())
def test_what_is_cut_or_changed_is_refused_or_read_and_never_anything_else(given: list[RecordedChunk], data: Any):
    body = bytearray(pack_chunks(given))
    if data.draw(st.booleans()):
        body = body[: data.draw(st.integers(0, max(0, len(body) - 1)))]
    else:
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        assert all(isinstance(piece, RecordedChunk) for piece in unpack_chunks(bytes(body)))


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"{}",
        b'[{"dtype":"object","shape":[1]}]',
        b'[{"dtype":"float32","shape":[-1]}]',
        b'[{"dtype":"float32","shape":[9999999999,9999999999]}]',
        b'[{"dtype":"float32","shape":[1]}]',
        b'[{"other":1}]',
        b'[{"dtype":"bfloat16","shape":[1]}]',
    ],
)
def test_what_is_no_tape_is_refused(head: bytes):
    with pytest.raises(ProtocolError, match="a captured output"):
        unpack_chunks(len(head).to_bytes(8, "big") + head)


class Arena:
    """A tensor client that counts open arrays."""

    def __init__(self) -> None:
        self.memory: np.ndarray = np.arange(12, dtype=np.float32).reshape(6, 2)
        self.open = 0

    def view(self, _: Handle) -> np.ndarray:
        self.open += 1
        return self.memory

    def release(self, _: Handle) -> None:
        self.open -= 1


HANDLE = Handle("h", "n", "a", 0, 48, "float32", (6, 2), 1)


def make_chunk(seq: int, **more: Any) -> Chunk:
    return Chunk("i", 0, "rows", seq, **more)


def test_rows_that_grow_in_one_block_are_kept_as_they_come():
    arena = Arena()
    tape = OutputCapture(0, "rows", arena.view, arena.release)
    for seq in range(2):
        tape.add_chunk(make_chunk(seq, handle=HANDLE, rows=(2 * seq, 2 * seq + 2)))
        assert tape.last.tolist() == arena.memory[2 * seq : 2 * seq + 2].tolist()
    assert tape.to_record() is None
    arena.memory = arena.memory + 100  # the arena has reused the memory
    tape.add_chunk(make_chunk(2, last=True, empty=True))

    record = tape.to_record()

    assert arena.open == 0
    assert record is not None
    about, body = record
    assert (about.node, about.output, about.nbytes, about.chunks) == (0, "rows", 32, 3)
    arrays = [piece.array.tolist() for piece in unpack_chunks(body) if piece.array is not None]
    assert arrays == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_a_tape_that_begins_again_holds_the_last_attempt():
    arena = Arena()
    tape = OutputCapture(0, "rows", arena.view, arena.release)
    tape.add_chunk(make_chunk(0, handle=HANDLE, rows=(0, 1)))
    tape.restart()
    assert arena.open == 0
    tape.add_chunk(make_chunk(0, data={"text": "x"}, last=True))

    record = tape.to_record()

    assert record is not None
    assert [piece.data for piece in unpack_chunks(record[1])] == [{"text": "x"}]


def test_a_tape_that_lost_a_chunk_is_not_kept():
    arena = Arena()
    tape = OutputCapture(0, "rows", arena.view, arena.release)
    tape.add_chunk(make_chunk(0, data={"text": "x"}))
    tape.add_chunk(make_chunk(2, last=True))

    assert tape.to_record() is None


def test_what_numpy_does_not_know_is_not_kept():
    arena = Arena()
    arena.memory = np.zeros((1, 3), np.uint16)
    tape = OutputCapture(0, "rows", arena.view, arena.release)
    tape.add_chunk(make_chunk(0, handle=HANDLE, last=True))

    assert tape.to_record() is None
    assert arena.open == 0
