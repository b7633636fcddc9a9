"""Declarations of the tiny models. Checkpoints of random ones are built in a cache."""

import asyncio
import json
import shutil
from asyncio.subprocess import STDOUT
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from omnibus.checkpoints.safetensors import cache_directory
from omnibus.errors import BadRequest, DeadlineExceeded
from omnibus.families import catalog
from omnibus.process import run_module
from omnibus.process.spec import SHARED
from omnibus.suggestions import did_you_mean

#: Seed of the LLMs of twins, which share everything else with another model.
TWIN_SEED = 1
BUILD_TIMEOUT_SECONDS = 300.0  # seconds
#: Name of this step in progress reports.
BUILDING = "building tiny models"
#: Checkpoints of the trained ones, by family.
TRAINED = SHARED / "omnibus_models" / "world" / "weights"


async def tiny_models(
    only: Sequence[str] = (), cache: Path | None = None, report: Callable[[str, int, int], None] | None = None
) -> str:
    """Return declarations of the tiny models. Missing checkpoints of random ones are built.

    ``only`` chooses models. A twin must be chosen explicitly, and adds the model it shares with. After each build,
    ``report`` is called with the current step, the number of built checkpoints, and their total.
    """
    cache = cache or tiny_directory()
    alone = {**catalog.TINY, **catalog.ON_DEMAND_MODELS}
    if unknown := [name for name in only if name not in catalog.LOCAL]:
        suggestion = did_you_mean(unknown[0], catalog.LOCAL)
        raise BadRequest(f"unknown tiny model {', '.join(unknown)}; there is {', '.join(catalog.LOCAL)}{suggestion}")
    twins = {name: twin for name, twin in catalog.TWINS.items() if name in only}
    names = {*(only or catalog.TINY), *twins.values()}
    untrained_models = {name: family for name, family in alone.items() if name in names}
    builds = [
        *(build_checkpoint(family, cache / family) for family in untrained_models.values()),
        *(build_checkpoint(catalog.LOCAL[name], cache / name, *_twin_arguments(name)) for name in twins),
    ]
    await _build_all(builds, report or (lambda what, done, count: None))
    models = {
        name: catalog.untrained_declaration(family, str(cache / family)) for name, family in untrained_models.items()
    }
    trained_models = {name: family for name, family in catalog.WORLD.items() if name in only}
    models |= {name: _trained_declaration(name, family) for name, family in trained_models.items()}
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
    declaration = catalog.untrained_declaration(family, str(TRAINED / family))
    return {**declaration, "image_defaults": defaults} if defaults else declaration


def _twin_arguments(twin: str) -> list[str]:
    """Return the arguments of the builder for a twin's LLM."""
    return ["--llm-seed", str(TWIN_SEED), *(["--wide"] if twin in catalog.LARGER_TWINS else [])]


def tiny_directory() -> Path:
    """Return the directory of the checkpoints. It has a subdirectory for each family and twin."""
    return cache_directory() / "tiny"


async def build_checkpoint(family: str, directory: Path, *arguments: str) -> None:
    """Build the checkpoint in the cache, unless it exists. One of an older recipe is rebuilt.

    Raises ``BadRequest`` with the builder's output, and ``DeadlineExceeded``.
    """
    output = await _run_builder(family, directory, *arguments)
    if output and _remove_directory(directory):
        output = await _run_builder(family, directory, *arguments)
    if output:
        raise BadRequest(f"the tiny {family} checkpoint was not built:\n{output[-2000:]}")


async def write_checkpoint(family: str, directory: Path) -> None:
    """Build the checkpoint in a user's directory, unless it exists. Raises as ``build_checkpoint``."""
    output = await _run_builder(family, directory)
    if output:
        raise BadRequest(output.strip().splitlines()[-1])


async def _run_builder(family: str, directory: Path, *arguments: str) -> str:
    """Run the builder. Returns its output if it failed, and an empty text if the checkpoint exists."""
    builder = "omnibus_models.tiny"
    try:
        result = await run_module.run_module(
            builder, family, str(directory), *arguments, within=BUILD_TIMEOUT_SECONDS, stderr=STDOUT
        )
    except DeadlineExceeded:
        raise DeadlineExceeded(
            f"the tiny {family} checkpoint was not built within {BUILD_TIMEOUT_SECONDS:g} s"
        ) from None
    return result.output if result.code else ""


def _remove_directory(directory: Path) -> bool:
    """Remove an older build and return whether there was one."""
    was_present = directory.exists()
    shutil.rmtree(directory, ignore_errors=True)
    return was_present
