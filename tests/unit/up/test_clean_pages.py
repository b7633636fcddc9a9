"""Pages of files that a process has read and does not keep."""

import mmap
import re
import sys
from pathlib import Path

import pytest

from omnibus.up.fork_server import drop_clean_pages

PAGE = mmap.PAGESIZE


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "library.so"
    path.write_bytes(b"old" * PAGE)
    return path


def resident_kib(path: Path) -> int:
    """KiB of ``path`` that this process maps."""
    pattern = rf"{re.escape(str(path))}\n(?:[A-Z].*\n)*?Rss: +(\d+) kB"
    [count] = re.findall(pattern, Path("/proc/self/smaps").read_text())
    return int(count)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/smaps is Linux's")
def test_pages_that_were_only_read_are_unmapped_and_read_again(file):
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as mapping:
        assert mapping[:] == file.read_bytes()
        assert resident_kib(file) > 0

        drop_clean_pages()

        assert resident_kib(file) == 0
        assert mapping[:] == file.read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/smaps is Linux's")
@pytest.mark.parametrize("share", [mmap.MAP_PRIVATE, mmap.MAP_SHARED])
def test_pages_that_were_written_keep_their_contents(file, share):
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0, share) as mapping:
        mapping[PAGE : PAGE + 3] = b"new"

        drop_clean_pages()

        assert mapping[PAGE : PAGE + 3] == b"new"


def test_a_system_that_lists_no_mappings_keeps_its_pages(tmp_path: Path):
    assert drop_clean_pages(tmp_path / "smaps") == 0
