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
from tests.unit.sidecar.node import PATIENCE, connect_client, make_deadline, run_sidecar, wait_until
from tests.unit.sidecar.peers.pair import SECRET, PeerNode, peer_config, start_node

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
    async with (
        run_sidecar(tmp_path) as sidecar,
        previous_build(tmp_path) as previous,
        await connect_client(tmp_path) as client,
    ):
        await previous("connect", str(tmp_path / "s"), "n1")
        previous_handle = as_handle(await previous("put", VALUES))
        values = client.view(previous_handle).tolist()
        client.release(previous_handle)
        await wait_until(lambda: sidecar.snapshot()["blocks"] == 0)
        handle = await client.put(np.array(VALUES, np.float32) * 3, invocation="i", deadline=make_deadline(), readers=2)
        await previous("retain", msgspec.to_builtins(handle))
        read = [await previous("read", msgspec.to_builtins(handle)) for _ in range(2)]
        block_count = await previous("blocks")
        await previous("drop", msgspec.to_builtins(handle))
        await wait_until(lambda: sidecar.snapshot()["blocks"] == 0)
        for _ in range(3):
            await previous("put", VALUES)
        await previous("end")
        await wait_until(lambda: sidecar.snapshot()["blocks"] == 0)
        spares = [sidecar.snapshot()[name] for name in ("spare_blocks", "spares_used_total")]

    assert values == VALUES
    assert spares == [0, 0]
    assert read == [[3 * value for value in VALUES]] * 2
    assert block_count == 1


async def test_a_client_of_this_build_is_served_by_a_sidecar_of_the_previous_one(tmp_path: Path):
    async with previous_build(tmp_path) as previous:
        await previous("serve", "n1", SECRET.decode())
        await previous("connect", str(tmp_path / "s"), "n1")
        async with await connect_client(tmp_path) as client:
            handle = await client.put(np.array(VALUES, np.float32), invocation="i", deadline=make_deadline(), readers=2)
            client.retain(handle)
            read = await previous("read", msgspec.to_builtins(handle))
            values = client.view(handle).tolist()
            client.release(handle)
            block_count = (await client.stats())["blocks"]
            client.drop(handle)
            dropped_count = (await client.stats())["blocks"]
            await client.put(np.array(VALUES, np.float32), invocation="j", deadline=make_deadline())
            invocations = [lease["invocation"] for lease in await client.ledger()]
            client.end_invocation("j")
            ended_count = (await client.stats())["blocks"]
            # That sidecar does not support spare blocks, so clients request none, however often a size is needed.
            for _ in range(4):
                client.release(await client.put(np.array(VALUES, np.float32), invocation="k", deadline=make_deadline()))
            last_stats = await client.stats()

    assert read == values == VALUES
    assert (block_count, dropped_count, ended_count) == (1, 0, 0)
    assert invocations == ["j"]
    assert (last_stats["blocks"], last_stats["granted_total"]) == (0, 6)


@pytest.fixture
async def this_node(tmp_path: Path) -> AsyncIterator[PeerNode]:
    node = await start_node("new", tmp_path, peer_config())
    yield node
    await node.sidecar.stop()


async def test_nodes_of_both_builds_pull_from_each_other(tmp_path: Path, this_node: PeerNode):
    directory = tmp_path / "previous"
    directory.mkdir()
    async with previous_build(directory) as previous, await this_node.client() as client:
        there = await previous("serve", "old", SECRET.decode())
        this_node.plane.addresses["old"] = PeerAddress("127.0.0.1", there["port"], there["boot"])
        await previous("meet", "new", this_node.plane.port, this_node.plane.boot)
        await previous("connect", str(directory / "s"), "old")

        previous_handle = as_handle(await previous("put", VALUES))
        values = (await client.open_tensor(previous_handle, invocation="i", deadline=make_deadline())).tolist()
        client.release(previous_handle)
        handle = await client.put(np.array(VALUES, np.float32) * 3, invocation="i", deadline=make_deadline())
        read = await previous("read", msgspec.to_builtins(handle))
        await previous("end")
        this_node.sidecar.end_invocation("i")
        await wait_until(lambda: this_node.blocks == 0)
        left = await previous("blocks")

    assert values == VALUES
    assert read == [3 * value for value in VALUES]
    assert left == 0
