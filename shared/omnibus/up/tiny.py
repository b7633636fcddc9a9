"""Declarations of the tiny models; their checkpoints are built in a cache of our own."""

import asyncio
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from omnibus import catalog
from omnibus.errors import BadRequest
from omnibus.up.spec import ROOT, python


async def tiny_models(only: Sequence[str] = (), cache: Path | None = None) -> str:
    """Declarations of the tiny models, whose checkpoints are built on first use."""
    cache = cache or Path(os.environ.get("OMNIBUS_CACHE", "") or Path.home() / ".cache" / "omnibus") / "tiny"
    chosen = {name: family for name, family in catalog.TINY.items() if not only or name in only}
    if not chosen:
        raise BadRequest(f"no tiny model {', '.join(only)}; there is {', '.join(catalog.TINY)}")
    await asyncio.gather(*(_build(family, cache / family) for family in chosen.values()))
    return json.dumps(
        {"models": {name: catalog.declaration(family, str(cache / family)) for name, family in chosen.items()}}
    )


async def _build(family: str, directory: Path) -> None:
    """Make the checkpoint unless it is there; one of an older recipe is made anew."""
    output = await _run_builder(family, directory)
    if output and _removed(directory):
        output = await _run_builder(family, directory)
    if output:
        raise BadRequest(f"the tiny {family} checkpoint was not built:\n{output[-2000:]}")


async def _run_builder(family: str, directory: Path) -> str:
    """What the builder printed when it failed; empty when the checkpoint is there."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "shared"), os.environ.get("PYTHONPATH", "")])}
    process = await asyncio.create_subprocess_exec(
        *python("omnibus_models.tiny", family, str(directory)),
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 300)
    return output.decode() if process.returncode else ""


def _removed(directory: Path) -> bool:
    """Remove what an older build left; whether there was anything."""
    found = directory.exists()
    shutil.rmtree(directory, ignore_errors=True)
    return found
