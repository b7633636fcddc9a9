"""A system to debug: Qwen2.5-VL in one executor and two, an app, and traces.

Inputs of the app can kill an executor.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.collector import Collector, start_collector
from tests.e2e.system import VL, System, declare_model, start_system

#: An engine that ends its process, or breaks, on some inputs.
BRITTLE = '''"""Says a text again. Some texts kill its process, some break it."""

import os

from omnibus.task import CompositeTask, TaskInput, TaskOutput, UnitTask


class Said(TaskInput):
    text: str


class Heard(TaskOutput):
    text: str


class Again(UnitTask[Said, Heard]):
    async def run(self, said: Said) -> Heard:
        if "poison" in said.text:
            os._exit(3)
        if "defect" in said.text:
            raise ValueError(said.text)
        return Heard(text=said.text)


class Parrot(CompositeTask):
    again: Again = Again()

    def invoke(self, said: Said) -> Heard:
        return self.again.invoke(said)


class Echo(CompositeTask):
    parrot: Parrot = Parrot()

    async def invoke(self, said: Said) -> Heard:
        first = await self.parrot.invoke(said).text
        return self.parrot.invoke(Said(text=f"{first} {first}"))


PARROT, ECHO = Parrot(), Echo()


async def serve(request: Said) -> dict[str, str]:
    said = await (ECHO if request.text.startswith("echo") else PARROT)(request)
    return {"text": said.text}
'''


@pytest.fixture(scope="package")
def trace_collector() -> Iterator[Collector]:
    with start_collector() as new_collector:
        yield new_collector


@pytest.fixture(scope="package")
def traced_system(
    tmp_path_factory: pytest.TempPathFactory, vl_checkpoint: Path, trace_collector: Collector
) -> Iterator[System]:
    directory = tmp_path_factory.mktemp("seen")
    apps = directory / "apps"
    apps.mkdir()
    (apps / "brittle.py").write_text(BRITTLE)
    with start_system(
        directory,
        {VL: declare_model("qwen2_5_vl", vl_checkpoint)},
        "--apps-dir",
        str(apps),
        "--app",
        str(apps / "brittle.py"),
        OMNIBUS_GATEWAY_RECORD="stages",
        OTEL_EXPORTER_OTLP_ENDPOINT=trace_collector.url,
        OTEL_BSP_SCHEDULE_DELAY="100",  # milliseconds
    ) as system:
        yield system


@pytest.fixture(autouse=True)
async def wait_for_executors(traced_system: System) -> None:
    """Wait until all executors are registered before each test."""
    await traced_system.whole()
    await traced_system.becomes_ready()
