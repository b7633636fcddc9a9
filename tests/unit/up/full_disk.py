"""A NATS server on a small disk that fills, and its supervisor.

``unshare -m -- python -m tests.unit.up.full_disk DIRECTORY STORY`` mounts the disk in a separate mount namespace and
prints the recorded messages as JSON: ``before``, ``full`` and ``after``.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import nats
from nats.errors import Error
from nats.js import JetStreamContext

from omnibus.service import until_cancelled
from omnibus.up import infra
from omnibus.up.disk import StreamDisk
from omnibus.up.supervisor import Supervisor
from tests.unit.up.programs import WITHIN, Lines, log_to

DISK_BYTES = 60 << 20
STREAM_BYTES = 30 << 20


def _fill_disk(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


async def _publish_messages(stream: JetStreamContext, times: int = 1) -> bool:
    """Return True if all of some messages were written and acknowledged."""
    try:
        for _ in range(times):
            await stream.publish("s.a", bytes(60_000), timeout=2)
    except (Error, TimeoutError):
        return False
    return True


async def _until_recorded(stream: JetStreamContext) -> bool:
    async with asyncio.timeout(2 * WITHIN):
        while not await _publish_messages(stream):
            await asyncio.sleep(0.2)
    return True


async def _run_story(directory: Path, restarted_meanwhile: bool) -> dict[str, object]:
    server, lines, other = infra.prepare_nats(directory), Lines(), directory / "other"
    async with Supervisor([server.spec], log=log_to(lines)) as supervisor:
        caring = asyncio.create_task(StreamDisk(supervisor, log_to(lines), "nats", directory, server.ports[1]).run())
        client = await nats.connect(
            server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=_ignore_error
        )
        stream = client.jetstream()
        await stream.add_stream(name="S", subjects=["s.>"], max_bytes=STREAM_BYTES)
        before = await _publish_messages(stream)
        await asyncio.to_thread(_fill_disk, other)
        full = await _publish_messages(stream, 30)
        if restarted_meanwhile:
            supervisor.terminate("nats")
            await lines.until("restarting")
        await lines.until("is full")
        os.unlink(other)
        after = await _until_recorded(stream)
        await until_cancelled(caring)
        await client.close()
    return {"before": before, "full": full, "after": after}


async def _ignore_error(_: Exception) -> None: ...


def main(place: str, story: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", place], check=True)
    outcome = asyncio.run(_run_story(Path(place), story == "restarted_meanwhile"))
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
