import os
import stat
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from omnibus.errors import Fatal, ProtocolError, StaleHandle
from omnibus.tensors.arena import HEADER_BYTES, Arena
from omnibus.tensors.handle import Handle

SIZE = 1 << 16
GOOD = Handle(5, "n1", "arena", 128, 24, "float32", (2, 3), 99)


@pytest.fixture
def arena(tmp_path) -> Iterator[Arena]:
    arena = Arena.create("arena", SIZE, str(tmp_path))
    arena.write_header(GOOD.offset, GOOD.id, GOOD.generation, GOOD.nbytes)
    yield arena
    arena.unlink()
    arena.close()


def test_a_reader_sees_what_the_producer_writes_later(arena):
    reader_arena = Arena.attach(str(arena.path), SIZE)
    view = reader_arena.view(GOOD)

    arena.writable_array(GOOD)[:] = [[1, 2, 3], [4, 5, 6]]

    assert view.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert view.dtype == np.float32


def test_a_view_cannot_be_made_writable(arena):
    view = arena.view(GOOD)

    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.setflags(write=True)


def test_the_file_belongs_to_its_user_alone_and_is_sparse(arena):
    file_status = arena.path.stat()

    assert stat.S_IMODE(file_status.st_mode) == 0o600
    assert file_status.st_blocks * 512 < file_status.st_size


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "object"},
        {"shape": (2, 4)},
        {"shape": (-2, -3)},
        {"nbytes": 25},
        {"offset": 0},
        {"offset": -64},
        {"offset": 130},
        {"offset": SIZE},
        {"shape": (SIZE,), "nbytes": SIZE * 4},
        {"offset": 1 << 62},
        {"shape": (2**40, 2**40), "nbytes": 2**82},
    ],
    ids=str,
)
def test_a_handle_that_contradicts_itself_or_leaves_the_arena_is_refused(arena, changes):
    with pytest.raises(ProtocolError):
        arena.view(msgspec.structs.replace(GOOD, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": 98},
        {"id": 6},
        {"shape": (1, 3), "nbytes": 12},
        {"offset": 192},
    ],
    ids=str,
)
def test_a_handle_of_other_memory_is_stale(arena, changes):
    with pytest.raises(StaleHandle):
        arena.view(msgspec.structs.replace(GOOD, **changes))


def test_a_wiped_header_makes_its_handle_stale(arena):
    arena.clear_header(GOOD.offset)

    with pytest.raises(StaleHandle):
        arena.view(GOOD)


def test_an_empty_tensor_is_legal_unless_no_array_has_its_shape(arena):
    arena.write_header(SIZE, 6, 100, 0)
    empty = Handle(6, "n1", "arena", SIZE, 0, "int8", (0, 7), 100)

    assert arena.view(empty).shape == (0, 7)
    with pytest.raises(ProtocolError):
        arena.view(msgspec.structs.replace(empty, shape=(0, 2**70)))


def test_bfloat16_is_shown_as_words(arena):
    handle = msgspec.structs.replace(GOOD, dtype="bfloat16", shape=(12,))

    assert arena.view(handle).dtype == np.uint16


def test_clearing_leaves_zeros_and_nothing_but_the_block(arena):
    arena.writable_array(GOOD)[:] = 1
    before = arena.path.read_bytes()

    arena.zero_bytes(GOOD.offset, GOOD.nbytes)

    end = GOOD.offset + GOOD.nbytes
    assert arena.path.read_bytes() == before[: GOOD.offset] + bytes(GOOD.nbytes) + before[end:]


@pytest.mark.parametrize("name", ["", "../arena", "a/b", ".hidden", "x" * 201, "sp ace"])
def test_a_name_that_is_no_plain_file_name_is_refused(tmp_path, name):
    with pytest.raises(Fatal):
        Arena.create(name, SIZE, str(tmp_path))


def test_an_arena_larger_than_its_tmpfs_is_refused_at_once(tmp_path):
    with pytest.raises(Fatal, match="volume shm"):
        Arena.create("arena", 1 << 60, str(tmp_path))


def test_a_living_owner_keeps_its_arena(arena, tmp_path):
    with pytest.raises(Fatal, match="living sidecar"):
        Arena.create("arena", SIZE, str(tmp_path))

    assert arena.view(GOOD).shape == (2, 3)


def test_the_arena_of_a_dead_owner_is_replaced_and_old_views_keep_their_bytes(tmp_path):
    dead = Arena.create("arena", SIZE, str(tmp_path))
    dead.write_header(GOOD.offset, GOOD.id, GOOD.generation, GOOD.nbytes)
    dead.writable_array(GOOD)[:] = 7
    client = Arena.attach(str(dead.path), SIZE)
    view = client.view(GOOD)
    dead.close()

    fresh = Arena.create("arena", SIZE, str(tmp_path))
    client.close()

    assert (view == 7).all()
    with pytest.raises(StaleHandle):
        fresh.view(GOOD)
    fresh.close()


def test_unlinking_spares_the_file_of_a_successor(tmp_path):
    old = Arena.create("arena", SIZE, str(tmp_path))
    os.unlink(old.path)
    new = Arena.create("arena", SIZE, str(tmp_path))

    old.unlink()

    assert new.path.exists()
    new.unlink()
    assert not new.path.exists()
    old.close()
    new.close()


def test_a_link_in_the_way_is_not_followed(tmp_path):
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "arena").symlink_to(tmp_path / "victim")

    with pytest.raises(OSError, match="symbolic"):
        Arena.create("arena", SIZE, str(tmp_path))
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_an_arena_of_another_size_than_announced_is_refused(arena):
    with pytest.raises(ProtocolError):
        Arena.attach(str(arena.path), SIZE * 2)


def test_data_is_aligned_as_blocks_are():
    assert HEADER_BYTES % 64 == 0
