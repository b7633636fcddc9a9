"""A machine without free shared memory refuses allocations, and no writer is killed."""

import asyncio
import json
import os
import subprocess
import sys
import time
from functools import partial

import pytest

from omnibus.errors import ArenaFull
from omnibus.process.spec import PACKAGE_PATH
from omnibus_sidecar import backing
from omnibus_sidecar import backing as limits
from tests.mounts import find_unshare
from tests.unit.sidecar.full_machine import WRITERS
from tests.unit.sidecar.node import ROOT, connect_client, run_sidecar

MIB = 1 << 20
WITHIN = 60  # seconds


def _run_machine(story: str, directory) -> dict:
    process = subprocess.run(
        [*find_unshare(), sys.executable, "-m", "tests.unit.sidecar.full_machine", story, str(directory)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{PACKAGE_PATH}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN,
    )
    assert process.returncode == 0, f"code {process.returncode}\n{process.stderr}"
    return json.loads(process.stdout)


def test_writers_on_a_full_machine_are_refused_and_written_again_once_there_is_room(tmp_path):
    outcome = _run_machine("story", tmp_path)

    assert set(outcome["before"]) == {"ok", "arena_full"}
    assert outcome["patient"] == "ok"
    assert outcome["after"] == ["ok"] * WRITERS
    assert outcome["blocks"] == 0


def test_a_sidecar_that_starts_on_a_full_machine_serves_once_there_is_room(tmp_path):
    outcome = _run_machine("from_nothing", tmp_path)

    assert outcome["before"] == ["arena_full"] * WRITERS
    assert outcome["after"] == ["ok"] * WRITERS


async def test_every_block_that_is_granted_has_its_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(backing, "EXTENT_BYTES", MIB)
    async with run_sidecar(tmp_path, size=8 * MIB), await connect_client(tmp_path) as client:
        for nbytes in (100, MIB, 3 * MIB):
            await client.allocate((nbytes,), invocation="i", deadline=time.time() + 60, wait=0)

            stats = await client.stats()
            assert stats["touched_bytes"] <= stats["backed_bytes"] < 8 * MIB
            assert (tmp_path / "arena").stat().st_blocks * 512 >= stats["backed_bytes"]


async def test_a_container_at_its_memory_limit_is_refused_more_and_served_what_it_has(tmp_path, monkeypatch):
    monkeypatch.setattr(backing, "EXTENT_BYTES", MIB)
    async with run_sidecar(tmp_path, size=8 * MIB), await connect_client(tmp_path) as client:
        (tmp_path / "0").write_text("0::/\n")
        for name, text in (("max", str(100 * MIB)), ("current", str(100 * MIB))):
            (tmp_path / f"memory.{name}").write_text(text)
        monkeypatch.setattr(limits, "require", partial(limits.require, groups=tmp_path / "0", root=tmp_path))

        small = await client.allocate((MIB // 2,), invocation="i", deadline=time.time() + 60, wait=0)
        with pytest.raises(ArenaFull, match="no free pages"):
            await client.allocate((MIB,), invocation="i", deadline=time.time() + 60, wait=0)
        (tmp_path / "memory.current").write_text("0")
        large = await client.allocate((MIB,), invocation="i", deadline=time.time() + 60, wait=20.0)

        assert {small.array.nbytes, large.array.nbytes} == {MIB // 2, MIB}


async def test_who_would_not_wait_for_others_waits_for_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(backing, "EXTENT_BYTES", MIB)
    async with run_sidecar(tmp_path, size=8 * MIB), await connect_client(tmp_path) as client:
        many = [client.allocate((MIB,), invocation="i", deadline=time.time() + 60, wait=0) for _ in range(7)]

        blocks = await asyncio.gather(*many)

        assert len({block.handle.offset for block in blocks}) == 7
        with pytest.raises(ArenaFull, match="bytes are free"):
            await client.allocate((MIB,), invocation="i", deadline=time.time() + 60, wait=0)


async def test_a_sidecar_stops_while_pages_are_on_their_way(tmp_path):
    async with run_sidecar(tmp_path, size=256 * MIB) as sidecar, await connect_client(tmp_path) as client:
        asking = asyncio.create_task(client.allocate((200 * MIB,), invocation="i", deadline=time.time() + 60))
        while not sidecar._desk.backing.busy:
            await asyncio.sleep(0)

        await sidecar.stop()

        await asyncio.gather(asking, return_exceptions=True)
        assert asking.done()
        assert not (tmp_path / "arena").exists()
