"""Huge pages for the arena on any file system, and their mappings."""

import ctypes
import gc
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from omnibus.tensors.arena import HUGE_PAGE_BYTES, Arena, FileMapping

SIZE = 4 * HUGE_PAGE_BYTES
_SHARED = Path("/dev/shm")
_SWITCH = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
_PR_SET_THP_DISABLE = 41  # linux/prctl.h


def _kernel_collapses() -> bool:
    """Return True for Linux 6.1 or later with huge shared memory."""
    version = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
    return version >= (6, 1) and _SWITCH.exists() and "[deny]" not in _SWITCH.read_text()


collapses = pytest.mark.skipif(not _kernel_collapses(), reason="this kernel makes no huge pages of shared memory")


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(f"mapping-{os.getpid()}", SIZE, str(_SHARED))
    yield arena
    arena.unlink()
    arena.close()


def _huge_kib(path: Path) -> list[int]:
    """Return the KiB in pages of 2 MiB, by mapping of ``path``."""
    parts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    rows = [part for part in parts if str(path) in part.partition("\n")[0]]
    return [int(re.search(r"ShmemPmdMapped: +(\d+) kB", row).group(1)) for row in rows]


@contextmanager
def _no_huge_pages() -> Iterator[None]:
    """Disable huge pages, as in a process started without them."""
    prctl = ctypes.CDLL(None).prctl
    assert prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        prctl(_PR_SET_THP_DISABLE, 0, 0, 0, 0)


def _need_free_memory() -> None:
    """Skip the test if the kernel lacks large pieces of free memory."""
    with (_SHARED / f"free-{os.getpid()}").open("w+b") as file:
        os.unlink(file.name)
        os.posix_fallocate(file.fileno(), 0, SIZE)
        if FileMapping(file.fileno(), SIZE, writable=True).collapse_pages(0, SIZE) < SIZE:
            pytest.skip("no free memory in large pieces now")


@collapses
def test_memory_that_is_handed_out_has_huge_pages_for_all_who_map_it(arena: Arena):
    arena.allocate_pages(0, SIZE)
    client = Arena.attach(str(arena.path), SIZE)

    for each in (arena, client):
        each.bytes_at(0, SIZE)[::4096] = bytes(SIZE // 4096)

    huge_kib = sorted(_huge_kib(arena.path))[-2:]
    client.close()
    if huge_kib != [SIZE // 1024] * 2:
        _need_free_memory()
    assert huge_kib == [SIZE // 1024] * 2


@collapses
def test_what_was_written_before_pages_are_collapsed_is_there_afterwards(arena: Arena):
    array = np.arange(SIZE // 8)
    with _no_huge_pages():
        arena.allocate_pages(0, SIZE)
    arena.bytes_at(0, SIZE)[:] = array.tobytes()

    collapsed_bytes = arena._writing.collapse_pages(0, SIZE)

    if collapsed_bytes < SIZE:
        _need_free_memory()
    assert collapsed_bytes == SIZE
    assert (np.frombuffer(arena.bytes_at(0, SIZE), array.dtype) == array).all()


def test_a_process_without_huge_pages_has_small_ones(arena: Arena):
    with _no_huge_pages():
        arena.allocate_pages(0, SIZE)
        assert arena._writing.collapse_pages(0, SIZE) == 0
    arena.bytes_at(0, SIZE)[:] = bytes(SIZE)

    assert arena.path.stat().st_blocks * 512 == SIZE


def test_only_whole_huge_pages_are_made(tmp_path: Path):
    with (tmp_path / "file").open("w+b") as file:
        file.truncate(SIZE)
        mapping = FileMapping(file.fileno(), SIZE, writable=True)

        assert mapping.collapse_pages(1, 2 * HUGE_PAGE_BYTES - 1) == 0
        assert mapping.address % HUGE_PAGE_BYTES == 0


def test_memory_is_given_back_once_no_array_shows_it(tmp_path: Path):
    with (tmp_path / "file").open("w+b") as file:
        file.write(b"abcd" * 2048)
        file.flush()
        mapping = FileMapping(file.fileno(), 5000, writable=False)
    array = np.ndarray((4,), np.uint8, mapping.array, 4096)
    del mapping
    gc.collect()

    assert array.tobytes() == b"abcd"
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    del array
    gc.collect()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_a_file_that_cannot_be_mapped_is_an_error(tmp_path: Path):
    with (tmp_path / "file").open("wb") as file:  # which may not be read
        file.truncate(SIZE)
        with pytest.raises(PermissionError):
            FileMapping(file.fileno(), SIZE, writable=True)
