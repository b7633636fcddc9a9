"""Anonymous shared memory: found by its descriptor, and freed with its owner."""

import gc
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from omnibus_llm.vllm.protocol import SharedBuffer, map_memory, open_memory, relocate_place

READ = """
import json, sys
import torch
from omnibus_llm.vllm.protocol import map_memory
print(map_memory(json.loads(sys.argv[1]), torch.uint8).numpy().tobytes().hex())
"""


def test_another_process_reads_what_was_written() -> None:
    memory = SharedBuffer()
    first = memory.append(np.arange(3, dtype=np.float32))
    second = memory.append(np.arange(4, dtype=np.uint8))

    command = [sys.executable, "-c", READ, json.dumps(memory.place)]
    out = subprocess.run(command, capture_output=True, text=True, check=True)

    assert (first, second) == (0, 12)
    assert bytes.fromhex(out.stdout) == np.arange(3, dtype=np.float32).tobytes() + bytes(range(4))


def test_what_another_has_written_is_read_and_what_was_not_is_none() -> None:
    memory = SharedBuffer()
    fd = open_memory(memory.place, os.O_WRONLY)
    os.pwrite(fd, b"abcd", 4)
    os.close(fd)

    assert memory.read(4, 4) == b"abcd"
    assert memory.read(0, 8) == b"\0\0\0\0abcd"
    assert memory.read(4, 5) is None


def test_later_memory_under_the_same_descriptor_is_not_taken_for_it() -> None:
    memory = SharedBuffer()
    memory.append(np.zeros(4, np.uint8))
    place = memory.place
    memory.close()
    other = SharedBuffer()
    assert other.place["path"] == place["path"]

    with pytest.raises(FileNotFoundError):
        open_memory(place)


def test_closing_twice_or_never_leaves_nothing() -> None:
    memory, dropped_buffer = SharedBuffer(), SharedBuffer()
    paths = [memory.place["path"], dropped_buffer.place["path"]]

    memory.close()
    memory.close()
    del dropped_buffer
    gc.collect()

    assert not any(map(os.path.exists, paths))


def test_who_has_opened_it_keeps_it() -> None:
    memory = SharedBuffer()
    memory.append(np.arange(4, dtype=np.uint8))
    place = memory.place
    fd = open_memory(place)
    memory.close()

    tensor = map_memory(relocate_place(place, fd), torch.uint8)
    os.close(fd)
    assert tensor.tolist() == list(range(4))
    assert not any("omnibus-llm" in os.readlink(path) for path in map("/proc/self/fd/{}".format, list_descriptors()))


def list_descriptors() -> list[str]:
    """Return the descriptors of this process, except the one used for listing."""
    return [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
