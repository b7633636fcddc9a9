"""Declarations of the tiny models; checkpoints of random ones are built in a cache of our own."""

import asyncio
import json
import os
import shutil
from asyncio.subprocess import STDOUT
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from omnibus.errors import BadRequest, DeadlineExceeded
from omnibus.families import catalog
from omnibus.process import run_module
from omnibus.process.spec import SHARED
from omnibus.suggestions import did_you_mean

#: Seed of the LLMs of twins, which have all else from the model they share with.
TWIN_SEED = 1
BUILD_TIMEOUT_SECONDS = 300.0  # seconds
#: What is reported while checkpoints are built.
BUILDING = "building tiny models"
#: Checkpoints of the trained ones, by family.
TRAINED = SHARED / "omnibus_models" / "world" / "weights"


async def tiny_models(
    only: Sequence[str] = (), cache: Path | None = None, report: Callable[[str, int, int], None] | None = None
) -> str:
    """Declarations of the tiny models, whose checkpoints are built on first use, or were trained.

    ``only`` chooses among them; a twin is there when it is chosen, and brings the model it shares with.
    ``report`` is called with what is done, how many are built, and of how many, whenever one is.
    """
    cache = cache or tiny_directory()
    alone = {**catalog.TINY, **catalog.ON_DEMAND_MODELS}
    if unknown := [name for name in only if name not in catalog.LOCAL]:
        meant = did_you_mean(unknown[0], catalog.LOCAL)
        raise BadRequest(f"no tiny model {', '.join(unknown)}; there is {', '.join(catalog.LOCAL)}{meant}")
    twins = {name: shared for name, shared in catalog.TWINS.items() if name in only}
    names = {*(only or catalog.TINY), *twins.values()}
    chosen = {name: family for name, family in alone.items() if name in names}
    builds = [
        *(build_checkpoint(family, cache / family) for family in chosen.values()),
        *(build_checkpoint(catalog.LOCAL[name], cache / name, *_twin_arguments(name)) for name in twins),
    ]
    await _build_all(builds, report or (lambda what, done, count: None))
    models = {name: catalog.untrained_declaration(family, str(cache / family)) for name, family in chosen.items()}
    trained = {name: family for name, family in catalog.WORLD.items() if name in only}
    models |= {name: _trained_declaration(name, family) for name, family in trained.items()}
    return json.dumps(
        {"models": {**models, **{name: catalog.shared_encoder_declaration(name, str(cache / name)) for name in twins}}}
    )


async def _build_all(builds: Sequence[Coroutine[Any, Any, None]], report: Callable[[str, int, int], None]) -> None:
    built = 0

    async def build(one: Coroutine[Any, Any, None]) -> None:
        nonlocal built
        await one
        built += 1
        report(BUILDING, built, len(builds))

    if builds:
        report(BUILDING, 0, len(builds))
    await asyncio.gather(*map(build, builds))


def _trained_declaration(name: str, family: str) -> dict[str, Any]:
    defaults = catalog.WORLD_IMAGE_DEFAULTS.get(name)
    declared = catalog.untrained_declaration(family, str(TRAINED / family))
    return {**declared, "image_defaults": defaults} if defaults else declared


def _twin_arguments(twin: str) -> list[str]:
    """Return the arguments of the builder for a twin's LLM."""
    return ["--llm-seed", str(TWIN_SEED), *(["--wide"] if twin in catalog.LARGER_TWINS else [])]


def tiny_directory() -> Path:
    """Return the directory of the checkpoints: a subdirectory for each, named after its family, or after the twin."""
    return Path(os.environ.get("OMNIBUS_CACHE", "") or Path.home() / ".cache" / "omnibus") / "tiny"


async def build_checkpoint(family: str, directory: Path, *arguments: str) -> None:
    """Make the checkpoint in a directory of our own, unless it is there; one of an older recipe is made anew.

    Raises ``BadRequest`` with what the builder said, and ``DeadlineExceeded``.
    """
    output = await _run_builder(family, directory, *arguments)
    if output and _remove_directory(directory):
        output = await _run_builder(family, directory, *arguments)
    if output:
        raise BadRequest(f"the tiny {family} checkpoint was not built:\n{output[-2000:]}")


async def write_checkpoint(family: str, directory: Path) -> None:
    """Make the checkpoint in anybody's directory, unless it is there. Raises as ``build_checkpoint``."""
    output = await _run_builder(family, directory)
    if output:
        raise BadRequest(output.strip().splitlines()[-1])


async def _run_builder(family: str, directory: Path, *arguments: str) -> str:
    """Run the builder; returns what it printed when it failed, and an empty text when the checkpoint is there."""
    builder = "omnibus_models.tiny"
    try:
        ended = await run_module.run_module(
            builder, family, str(directory), *arguments, within=BUILD_TIMEOUT_SECONDS, stderr=STDOUT
        )
    except DeadlineExceeded:
        raise DeadlineExceeded(
            f"the tiny {family} checkpoint was not built within {BUILD_TIMEOUT_SECONDS:g} s"
        ) from None
    return ended.output if ended.code else ""


def _remove_directory(directory: Path) -> bool:
    """Remove what an older build left; whether there was anything."""
    found = directory.exists()
    shutil.rmtree(directory, ignore_errors=True)
    return found
