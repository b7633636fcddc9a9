"""Profile unit tasks that apps bring: the others are measured if one of them fails."""

import json
import textwrap
from pathlib import Path

import pytest

from omnibus import profile
from omnibus_planner.declared.planned_spec import GpuType, PlannedModel
from omnibus_planner.declared.shared_processes import APPS, AppsModel
from omnibus_planner.optimize.planner import Planner
from tests.e2e.profiling.running import run_profile

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]

APP = """
    import hashlib
    from pathlib import Path

    from pydantic import BaseModel

    from omnibus.task import TaskInput, TaskOutput, UnitTask, Value


    class Text(TaskInput):
        text: str


    class Hashed(TaskOutput):
        digest: Value[str]


    class {kind}(UnitTask[Text, Hashed]):
        def load(self) -> None:
            {load}

        def run(self, text: Text) -> Hashed:
            {run}
            return Hashed(digest=hashlib.pbkdf2_hmac("sha256", text.text.encode(), b"", 5_000 * len(text.text)).hex())


    class Request(BaseModel):
        text: str


    TASK = {kind}()


    async def serve(request: Request) -> str:
        return await (await TASK(Text(text=request.text))).digest
"""
TEXT = "four"


def write_app(directory: Path, name: str, load: str = "pass", run: str = "pass") -> dict[str, object]:
    """Write an app with one unit task, and return its request of a workload."""
    source = textwrap.dedent(APP).format(kind=name.capitalize(), load=load, run=run)
    (directory / f"{name}.py").write_text(source)
    return {"app": name, "body": {"text": TEXT}}


def test_tasks_of_apps_are_measured_and_planned_though_two_of_them_fail(tmp_path: Path):
    requests = [
        write_app(tmp_path, "digest"),
        write_app(tmp_path, "raising", run='raise ValueError("no vowels")'),
        write_app(tmp_path, "missing", load='Path("weights.bin").read_bytes()'),
    ]
    (tmp_path / "w.json").write_text(json.dumps({"requests": requests}))

    code, output, messages = run_profile(
        tmp_path, "digest.py", "raising.py", "missing.py", "--workload", "w.json", "--seconds", "0.3",
        "--requests", "4", "--most", "2", "--start-within", "6", "--out", "apps.json",
    )  # fmt: skip

    assert code == 0, messages
    found = profile.decode_profile((tmp_path / "apps.json").read_bytes())
    assert found.components == ("digest",)
    [work] = found.options["digest"].work
    assert 0.001 < work.seconds < 2.0
    assert found.options["digest"].memory_gb > 0.01
    assert found.options["digest"].start_s > 0
    assert [point.at_once for point in found.options["digest"].curve] == [1, 2]
    assert f"digest {TEXT} (16 bytes" in found.workload
    assert "raising is not measured" in output
    assert "ValueError" in output
    assert "missing.py is not measured" in output
    assert "weights.bin" in output
    model = AppsModel(PlannedModel()).with_profile(found)
    planned = Planner({APPS: model}, {APPS: found}, {"cpu": GpuType(2)}, {}).plan()
    assert planned.models[APPS].options["digest"].replicas == 2
    assert planned.capacity[APPS] == pytest.approx(2 / work.seconds)
