"""Every way to stop the system cleans up.

No process, port, shared memory or directory is left.
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from omnibus.up.shm import SHARED_MEMORY
from tests.e2e.questions import make_image, make_question
from tests.e2e.system import VL, System, declare_model
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e


@pytest.fixture
def system(tmp_path: Path, vl_checkpoint: Path) -> Iterator[System]:
    options = {"EL": {"components": ["vision", "thinker"], "service": "llm"}}
    model = declare_model("qwen2_5_vl", vl_checkpoint, options=options, paths=[{"options": ["EL"]}])
    system = System(tmp_path, {VL: model}, {})
    system.start()
    yield system
    system.stop()


async def start_long_request(system: System) -> "asyncio.Task[object]":
    """Start a long request, and wait until it is in progress."""
    body = {
        "model": VL,
        "messages": make_question(make_image(1), "describe").messages,
        "max_tokens": 3900,
        "ignore_eos": True,
    }

    async def ask_long() -> object:
        async with system.http() as http:
            return await http.post("/v1/chat/completions", json=body)

    async with Watch.on(system) as watch:
        asking = asyncio.create_task(ask_long())
        await watch.first("omnibus.reply.")
    return asking


async def test_nothing_is_left_after_a_stop_in_the_middle_of_a_request(system: System):
    segments = list(SHARED_MEMORY.glob(f"{system.state.shm_prefix}*"))
    asking = await start_long_request(system)

    left = await asyncio.to_thread(system.stop)
    await asyncio.gather(asking, return_exceptions=True)

    assert segments
    assert left == []


async def test_a_supervisor_that_was_killed_takes_all_with_it_and_the_next_one_sweeps(system: System, tmp_path: Path):
    directory, prefix = Path(system.state.directory), system.state.shm_prefix
    asking = await start_long_request(system)
    family = system.processes()

    os.kill(system.state.pid, signal.SIGKILL)
    await asyncio.to_thread(psutil.wait_procs, family, timeout=10)
    await asyncio.gather(asking, return_exceptions=True)
    alive = [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    await asyncio.to_thread(start_another, system, tmp_path)

    assert len(family) >= 6
    assert alive == []
    assert not directory.exists()
    assert not list(SHARED_MEMORY.glob(f"{prefix}*"))


def start_another(system: System, directory: Path) -> None:
    """Run ``omnibus up`` until its first process logs something."""
    (directory / "none.json").write_text('{"models": {}}')
    process = system.command("up", "--models", str(directory / "none.json"), "--port", "0")
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    process.communicate(timeout=30)
