"""The previous build's sidecar with current clients, the reverse, and mixed pulls.

Pulls are between nodes of both builds. ``tests/golden/releases/previous_sidecar.zip`` contains that build's code of a
sidecar and its clients, written by ``tests/golden/zip_previous.py``. It runs in a separate process
(``tests/golden/previous_node.py``).
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from omnibus.tensors.handle import Handle
from omnibus_sidecar.peers.dialler import PeerAddress
from tests.golden.corpus import HERE
from tests.unit.sidecar.node import PATIENCE, connect, running, soon, until
from tests.unit.sidecar.peers.pair import SECRET, Node, peer_config, start_node

CODE = HERE / "releases" / "previous_sidecar.zip"
VALUES = [1.0, 2.0, 4.0, 8.0]


class Previous:
    """The process of the previous build."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def __call__(self, *command: Any) -> Any:
        """Send ``command`` and return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        return await self.answer()

    async def answer(self) -> Any:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), PATIENCE)
        assert line, "the previous build's process has ended: see its error above"
        return json.loads(line)


@asynccontextmanager
async def previous_build(directory: Path) -> AsyncIterator[Previous]:
    """A process that runs only the archive's code."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE / "previous_node.py"), str(directory), cwd=directory,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(CODE)},
    )  # fmt: skip
    try:
        previous = Previous(process)
        assert str(await previous.answer()).startswith(str(CODE))
        yield previous
    finally:
        process.kill()
        await process.wait()


def as_handle(answer: Any) -> Handle:
    return msgspec.convert(answer, Handle)


async def test_a_client_of_the_previous_build_is_served_by_a_sidecar_of_this_one(tmp_path: Path):
    async with running(tmp_path) as sidecar, previous_build(tmp_path) as previous, await connect(tmp_path) as client:
        await previous("connect", str(tmp_path / "s"), "n1")
        theirs = as_handle(await previous("put", VALUES))
        seen = client.view(theirs).tolist()
        client.release(theirs)
        await until(lambda: sidecar.snapshot()["blocks"] == 0)
        mine = await client.put(np.array(VALUES, np.float32) * 3, invocation="i", deadline=soon(), readers=2)
        await previous("retain", msgspec.to_builtins(mine))
        read = [await previous("read", msgspec.to_builtins(mine)) for _ in range(2)]
        kept = await previous("blocks")
        await previous("drop", msgspec.to_builtins(mine))
        await until(lambda: sidecar.snapshot()["blocks"] == 0)
        for _ in range(3):
            await previous("put", VALUES)
        await previous("end")
        await until(lambda: sidecar.snapshot()["blocks"] == 0)
        spares = [sidecar.snapshot()[name] for name in ("spare_blocks", "spares_used_total")]

    assert seen == VALUES
    assert spares == [0, 0]
    assert read == [[3 * value for value in VALUES]] * 2
    assert kept == 1


async def test_a_client_of_this_build_is_served_by_a_sidecar_of_the_previous_one(tmp_path: Path):
    async with previous_build(tmp_path) as previous:
        await previous("serve", "n1", SECRET.decode())
        await previous("connect", str(tmp_path / "s"), "n1")
        async with await connect(tmp_path) as client:
            mine = await client.put(np.array(VALUES, np.float32), invocation="i", deadline=soon(), readers=2)
            client.retain(mine)
            read = await previous("read", msgspec.to_builtins(mine))
            seen = client.view(mine).tolist()
            client.release(mine)
            kept = (await client.stats())["blocks"]
            client.drop(mine)
            dropped = (await client.stats())["blocks"]
            await client.put(np.array(VALUES, np.float32), invocation="j", deadline=soon())
            listed = [lease["invocation"] for lease in await client.ledger()]
            client.end_invocation("j")
            ended = (await client.stats())["blocks"]
            # That sidecar does not support spare blocks, so clients request none, however often a size is needed.
            for _ in range(4):
                client.release(await client.put(np.array(VALUES, np.float32), invocation="k", deadline=soon()))
            repeated = await client.stats()

    assert read == seen == VALUES
    assert (kept, dropped, ended) == (1, 0, 0)
    assert listed == ["j"]
    assert (repeated["blocks"], repeated["granted_total"]) == (0, 6)


@pytest.fixture
async def this_node(tmp_path: Path) -> AsyncIterator[Node]:
    node = await start_node("new", tmp_path, peer_config())
    yield node
    await node.sidecar.stop()


async def test_nodes_of_both_builds_pull_from_each_other(tmp_path: Path, this_node: Node):
    directory = tmp_path / "previous"
    directory.mkdir()
    async with previous_build(directory) as previous, await this_node.client() as client:
        there = await previous("serve", "old", SECRET.decode())
        this_node.plane.addresses["old"] = PeerAddress("127.0.0.1", there["port"], there["boot"])
        await previous("meet", "new", this_node.plane.port, this_node.plane.boot)
        await previous("connect", str(directory / "s"), "old")

        theirs = as_handle(await previous("put", VALUES))
        seen = (await client.open_tensor(theirs, invocation="i", deadline=soon())).tolist()
        client.release(theirs)
        mine = await client.put(np.array(VALUES, np.float32) * 3, invocation="i", deadline=soon())
        read = await previous("read", msgspec.to_builtins(mine))
        await previous("end")
        this_node.sidecar.end_invocation("i")
        await until(lambda: this_node.blocks == 0)
        left = await previous("blocks")

    assert seen == VALUES
    assert read == [3 * value for value in VALUES]
    assert left == 0
