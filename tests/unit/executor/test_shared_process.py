"""One executor runs components of several models, each by its own engine."""

import json

import msgspec
import pytest

from omnibus.app_record import TaskRecord
from omnibus.errors import BadRequest
from omnibus.executor.service import ENGINE, ExecutorService, engine
from omnibus.executor.settings import ExecutorSettings
from omnibus.families.catalog import HostedPart
from omnibus.task import TaskInput, TaskOutput, UnitTask, Value
from tests.unit.jobs import MemoryJob, finish_job


class Number(TaskInput):
    value: int


class Doubled(TaskOutput):
    value: Value[int]


class Double(UnitTask[Number, Doubled]):
    def run(self, number: Number) -> Doubled:
        return Doubled(value=2 * number.value)


RECORD = TaskRecord("double", "double", "", "", "generator", True, f"{__name__}:Double")
OWN = HostedPart(
    "double", "double", "python", msgspec.json.encode([RECORD]).decode(), "omnibus.executor.python_task:engine"
)


def make_settings(*parts: HostedPart, components: str = "double") -> ExecutorSettings:
    return ExecutorSettings(
        model="apps", family="python", components=components, tasks=components, engine=ENGINE,
        checkpoint=msgspec.json.encode(parts).decode(),
    )  # fmt: skip


async def test_a_component_runs_by_the_engine_of_its_own_model():
    runner = engine("double", make_settings(OWN))
    await runner.load()

    job = await finish_job(runner, MemoryJob({"value": 21}, ("value",)))

    assert job.outputs["value"].items[0].data == {"value": 42}


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        (make_settings(), "has no component 'double'; there is"),
        (ExecutorSettings(checkpoint="[3]"), "must be a JSON list of parts"),
    ],
)
def test_a_component_that_is_not_listed_is_an_error(settings: ExecutorSettings, fault: str):
    with pytest.raises(BadRequest, match=fault):
        engine("double", settings)


def test_a_shared_process_reports_the_sampling_that_its_language_model_recommends(tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True, "top_k": 7}))
    (tmp_path / "config.json").write_text("{}")
    language = HostedPart("lm", "thinker", "causal_lm", str(tmp_path), "omnibus_engines:transformers")

    with_language = ExecutorService().make_identity("n", make_settings(OWN, language, components="double,lm"))
    without = ExecutorService().make_identity("n", make_settings(OWN, language))

    assert with_language.sampling is not None
    assert with_language.sampling["top_k"] == 7
    assert without.sampling is None
