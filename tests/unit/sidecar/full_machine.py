"""A node whose shared memory is a tmpfs of ROOM_BYTES, mostly filled and freed by another process.

``unshare -m -- python -m tests.unit.sidecar.full_machine DIRECTORY`` mounts the tmpfs in a separate mount namespace and
prints the writers' outcomes as one line of JSON.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import uvloop

from omnibus.errors import ArenaFull
from omnibus.tensors.client import TensorClient
from tests.unit.sidecar.node import connect_client, run_sidecar

MIB = 1 << 20
ROOM_BYTES = 96 * MIB
ARENA_BYTES = 80 * MIB
#: Room that others leave: more than the sidecar backs at its start, and less than the writers need.
LEFT_BYTES = 40 * MIB
WRITERS = 8
IMAGE_BYTES = 6 * MIB


async def _write_image(client: TensorClient, number: int) -> str:
    """Put an image in place, as a gateway does. Returns the code of the error if it is refused."""
    try:
        block = await client.allocate((IMAGE_BYTES,), invocation=f"i{number}", deadline=time.time() + 60, wait=0.1)
    except ArenaFull as error:
        return error.code
    block.array[:] = number + 1
    return "ok" if bool(np.all(client.view(block.seal()) == number + 1)) else "different"


async def _run_round(client: TensorClient) -> list[str]:
    """Run all writers at once, then free their blocks."""
    outcomes = await asyncio.gather(*(_write_image(client, number) for number in range(WRITERS)))
    for number in range(WRITERS):
        client.end_invocation(f"i{number}")
    await client.stats()
    return outcomes


async def _wait_for_room(client: TensorClient, other: Path) -> str:
    """Run a writer that waits for room, while ``other`` is removed."""
    whole = ARENA_BYTES - MIB
    waiting = asyncio.create_task(client.allocate((whole,), invocation="p", deadline=time.time() + 60, wait=30.0))
    await asyncio.sleep(0.2)  # its pages have been refused once
    other.unlink()
    block = await waiting
    block.array[:] = 9
    block.discard()
    return "ok"


async def _run_story(directory: Path) -> dict[str, object]:
    other = directory / "somebody-else"
    with other.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, ROOM_BYTES - LEFT_BYTES)
    async with run_sidecar(directory, size=ARENA_BYTES) as sidecar, await connect_client(directory) as client:
        before = await _run_round(client)
        patient = await _wait_for_room(client, other)
        after = await _run_round(client)
        return {"before": before, "patient": patient, "after": after, "blocks": sidecar.snapshot()["blocks"]}


async def _from_nothing(directory: Path) -> dict[str, object]:
    """Start a sidecar while no page is free."""
    other = directory / "somebody-else"
    with other.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, ROOM_BYTES - 64 * 1024)
    async with run_sidecar(directory, size=ARENA_BYTES), await connect_client(directory) as client:
        before = await _run_round(client)
        other.unlink()
        patient = await client.allocate((IMAGE_BYTES,), invocation="p", deadline=time.time() + 60, wait=30.0)
        patient.array[:] = 1
        return {"before": before, "after": await _run_round(client)}


def main(story: str, place: str) -> None:
    directory = Path(place)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "tmpfs", place], check=True)
    outcome = uvloop.run({"story": _run_story, "from_nothing": _from_nothing}[story](directory))
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
