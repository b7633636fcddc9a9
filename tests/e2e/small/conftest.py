"""Qwen2.5-VL in one executor with tight limits, and two gateways.

With one executor, work cannot move, and everything has a timeout.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.system import VL, System, declare_model, start_system

DEADLINE = 3.0  # seconds
MAX_BODY = 1 << 20  # bytes
CREDITS = 3
DRAIN = 4.0  # seconds


@pytest.fixture(autouse=True)
def wait_for_executors(request: pytest.FixtureRequest) -> None:
    """Wait for all executors before each test of a shared system.

    The gateways must have registered them.
    """
    for name in {"small", "pair"} & {*request.fixturenames}:
        asyncio.run(all_serve(request.getfixturevalue(name)))


async def all_serve(system: System) -> None:
    await system.whole()
    await system.becomes_ready()


@pytest.fixture(scope="package")
def small(tmp_path_factory: pytest.TempPathFactory, vl_checkpoint: Path) -> Iterator[System]:
    model = declare_model(
        "qwen2_5_vl",
        vl_checkpoint,
        options={"EL": {"components": ["vision", "thinker"], "service": "llm"}},
        paths=[{"options": ["EL"], "share": 1}],
    )
    with start_system(
        tmp_path_factory.mktemp("small"),
        {VL: model},
        OMNIBUS_GATEWAY_DEADLINE=str(DEADLINE),
        OMNIBUS_GATEWAY_MAX_BODY=str(MAX_BODY),
        OMNIBUS_GATEWAY_RECORD="digest",
        OMNIBUS_GATEWAY_QUARANTINE="0",  # executors are killed from outside here
        OMNIBUS_EXECUTOR_CREDITS=str(CREDITS),
    ) as system:
        yield system


@pytest.fixture(scope="package")
def pair(tmp_path_factory: pytest.TempPathFactory, vl_checkpoint: Path) -> Iterator[System]:
    """Two gateways; an encoder (E), two thinkers (L), one of both (EL)."""
    model = declare_model("qwen2_5_vl", vl_checkpoint)
    options = {**model["options"], "L": {**model["options"]["L"], "replicas": 2}}
    with start_system(
        tmp_path_factory.mktemp("pair"),
        {VL: {**model, "options": options}},
        "--gateways",
        "2",
        OMNIBUS_SERVICE_DRAIN=str(DRAIN),
    ) as system:
        yield system
