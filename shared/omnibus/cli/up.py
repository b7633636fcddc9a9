"""``omnibus up``: everything on this machine until Ctrl-C."""

import argparse
from pathlib import Path

from omnibus.errors import BadRequest
from omnibus.up.stack import Stack
from omnibus.up.tiny import tiny_models


async def up(options: argparse.Namespace) -> int:
    async with Stack(await declarations(options), port=options.port) as stack:
        print(
            f"\nOmnibus is up: {stack.url}/v1   docs: {stack.url}/docs   bus: {stack.nats.url}   stop: Ctrl-C\n",
            flush=True,
        )
        await stack.supervisor.run_until_signal()
    return 0


async def declarations(options: argparse.Namespace) -> str:
    """The declarations file that was named, or the tiny models."""
    if not options.models:
        return await tiny_models(options.only)
    return _read(Path(options.models))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise BadRequest(f"--models {path}: {error.strerror}") from error
