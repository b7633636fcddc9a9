"""Unit tasks of apps run if they still match the registered code."""

import itertools
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnibus import graph
from omnibus.app_record import TaskRecord
from omnibus.bus import messages, subjects
from omnibus.bus.messages import Chunk, Hop, NodeFailed
from omnibus.bus.nats import NatsBus
from omnibus.errors import BadRequest, Forbidden
from omnibus.executor.python_task import engine
from omnibus.executor.runner import Runner
from omnibus.executor.service import ExecutorService
from omnibus.executor.settings import ExecutorSettings
from omnibus.graph import GraphNode
from omnibus.settings import BusSettings
from tests.unit.executor.arithmetic import make_invocation
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.sidecar import node as nodes

PATIENCE = 20.0  # seconds
_number = itertools.count()

SPELL = """
    from collections.abc import AsyncIterator
    from typing import ClassVar

    from omnibus.task import Stream, TaskInput, TaskOutput, UnitTask

    DONE = []


    class Words(TaskInput):
        text: str


    class Letters(TaskOutput):
        letters: Stream[str]
        count: int


    class Spell(UnitTask[Words, Letters]):
        upper: bool = False
        _alphabet: frozenset[str] = frozenset()

        async def load(self) -> None:
            self._alphabet = frozenset("abc")

        async def run(self, words: Words) -> AsyncIterator[dict]:
            known = [letter for letter in words.text if letter in self._alphabet]
            for letter in known:
                yield {"letters": letter.upper() if self.upper else letter}
            yield {"count": len(known)}

        async def close(self) -> None:
            DONE.append(self.name)


    class Shout(UnitTask[Words, Letters]):
        kind: ClassVar[str] = "shout"

        def load(self) -> None:
            DONE.append("loaded")

        def run(self, words: Words) -> Letters:
            if words.text == "never":
                raise ValueError("I do not shout that")
            return Letters.of({"letters": [words.text.upper()], "count": 1})


    class Outer:
        class Inner(Spell):
            kind: ClassVar[str] = "spell"


    class Silent(UnitTask[Words, Letters]):
        kind: ClassVar[str] = "spell"


    class Moody(Spell):
        kind: ClassVar[str] = "spell"
        mood: str

"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in ``tmp_path`` that is not yet imported."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"own_tasks_{next(_number)}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(SPELL))
    return name


def make_record(root: Path | str, cls: str, **changes: Any) -> TaskRecord:
    fields = {
        "name": "spell", "kind": "spell", "model": "", "component": "spell", "service": "generator", "own": True,
        "cls": cls, "fields": {}, "root": str(root),
    }  # fmt: skip
    return TaskRecord(**{**fields, **changes})


def encode_source(*records: TaskRecord) -> str:
    return msgspec.json.encode(records).decode()


def make_runner(*records: TaskRecord, component: str = "spell") -> Runner:
    apps_dir = records[0].root if records else ""
    return engine(component, ExecutorSettings(source=encode_source(*records), apps_dir=apps_dir))


def read_values(job: MemoryJob, output: str) -> list[Any]:
    return [item.data["value"] for item in job.outputs[output].items]


async def spell_text(runner: Runner, text: str) -> list[Any]:
    await runner.load()
    job = await finish_job(runner, MemoryJob({"text": text}, ("letters", "count")))
    return read_values(job, "letters")


# Valid tasks


async def test_a_task_is_loaded_run_and_closed(tmp_path: Path, module: str):
    task_runner = make_runner(make_record(tmp_path, f"{module}:Spell"))

    await task_runner.load()
    job = await finish_job(task_runner, MemoryJob({"text": "a big cab"}, ("letters", "count")))
    await task_runner.close()

    assert read_values(job, "letters") == ["a", "b", "c", "a", "b"]
    assert read_values(job, "count") == [5]
    assert job.outputs["letters"].closed
    assert sys.modules[module].DONE == ["spell"]


async def test_what_nobody_wants_is_not_sent(tmp_path: Path, module: str):
    task_runner = make_runner(make_record(tmp_path, f"{module}:Spell"))
    await task_runner.load()

    job = await finish_job(task_runner, MemoryJob({"text": "cab"}, ("count",)))

    assert read_values(job, "count") == [3]
    assert read_values(job, "letters") == []


async def test_a_task_may_be_plain_functions(tmp_path: Path, module: str):
    shout = make_record(tmp_path, f"{module}:Shout", name="shout", kind="shout", component="shout")
    task_runner = make_runner(shout, component="shout")

    assert await spell_text(task_runner, "hey") == ["HEY"]
    assert sys.modules[module].DONE == ["loaded"]
    await task_runner.close()


async def test_a_failure_of_a_task_is_its_own(tmp_path: Path, module: str):
    shout = make_record(tmp_path, f"{module}:Shout", name="shout", kind="shout", component="shout")
    task_runner = make_runner(shout, component="shout")

    with pytest.raises(ValueError, match="I do not shout that"):
        await spell_text(task_runner, "never")
    assert await spell_text(task_runner, "again") == ["AGAIN"]


async def test_fields_make_another_task(tmp_path: Path, module: str):
    upper = make_record(tmp_path, f"{module}:Spell", name="spell-upper_true", fields={"upper": True})

    assert await spell_text(make_runner(upper), "cab") == ["C", "A", "B"]


async def test_each_component_of_a_source_has_its_task(tmp_path: Path, module: str):
    records = (
        make_record(tmp_path, f"{module}:Spell", name="spell-words-low", model="words", component="low"),
        make_record(
            tmp_path, f"{module}:Spell", name="spell-words-high-upper_true", model="words", component="high",
            fields={"upper": True},
        ),
    )  # fmt: skip

    assert await spell_text(make_runner(*records, component="low"), "b") == ["b"]
    assert await spell_text(make_runner(*records, component="high"), "b") == ["B"]


@pytest.mark.parametrize(
    ("name", "model", "component"),
    [
        ("spell", "", "spell"),
        ("spell", "", ""),
        ("spell-words", "words", "spell"),
        ("spell-words-spell", "words", "spell"),
    ],
)
async def test_a_component_is_called_after_its_kind_or_says_so_itself(
    tmp_path: Path, module: str, name: str, model: str, component: str
):
    assert await spell_text(
        make_runner(make_record(tmp_path, f"{module}:Spell", name=name, model=model, component=component)), "c"
    ) == ["c"]


async def test_a_class_may_lie_in_another_one(tmp_path: Path, module: str):
    assert await spell_text(make_runner(make_record(tmp_path, f"{module}:Outer.Inner")), "c") == ["c"]


async def test_a_class_of_an_installed_module_is_imported_from_there(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "app").mkdir()

    assert await spell_text(make_runner(make_record("", f"{module}:Spell")), "c") == ["c"]
    assert await spell_text(make_runner(make_record(tmp_path / "app", f"{module}:Spell")), "c") == ["c"]


async def test_the_source_may_stand_in_place_of_a_checkpoint(tmp_path: Path, module: str):
    settings = ExecutorSettings(
        checkpoint=encode_source(make_record(tmp_path, f"{module}:Spell")), apps_dir=str(tmp_path)
    )

    assert await spell_text(engine("spell", settings), "c") == ["c"]


def test_its_statistics_say_which_code_runs(tmp_path: Path, module: str):
    assert make_runner(make_record(tmp_path, f"{module}:Spell")).stats() == {
        "task": "spell",
        "class": f"{module}:Spell",
    }


# Invalid tasks


@pytest.mark.parametrize("text", ["", "{", "[7]", '[{"name": "spell"}]', "/models/vl"])
def test_a_source_that_is_none_is_refused(text: str):
    with pytest.raises(BadRequest, match="OMNIBUS_EXECUTOR_SOURCE must be a JSON list of task records"):
        engine("spell", ExecutorSettings(source=text))


def test_a_component_that_is_not_in_the_source_is_refused_with_those_there_are(tmp_path: Path):
    with pytest.raises(BadRequest, match="no component 'count'; there is spell"):
        make_runner(make_record(tmp_path, "m:Spell"), component="count")


FAULTS = {
    "name": (
        "Spell",
        {"name": "spell-9"},
        r"'spell-9' \(.*:Spell\) is now named 'spell'; register its app again",
    ),
    "fields": ("Spell", {"fields": {"loud": True}}, r"cannot be made of {'loud': True}: ValidationError"),
    "field missing": ("Moody", {}, "cannot be made of {}: ValidationError"),
    "class": ("Spells", {}, "cannot be imported: AttributeError"),
    "no engine": ("Silent", {}, r"no longer has a method run\(self, inputs\)"),
    "no task": ("DONE", {}, "is not a unit task"),
    "a function": ("Words.model_validate", {}, "is not a unit task"),
    "another class": ("Words", {}, "is not a unit task"),
}


@pytest.mark.parametrize(("cls", "changes", "fault"), FAULTS.values(), ids=FAULTS.keys())
def test_a_task_that_is_not_what_was_registered_is_refused(
    tmp_path: Path, module: str, cls: str, changes: dict[str, Any], fault: str
):
    with pytest.raises(BadRequest, match=fault):
        make_runner(make_record(tmp_path, f"{module}:{cls}", **changes))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import no_such_thing", "ModuleNotFoundError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("(", "SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused(tmp_path: Path, module: str, text: str, fault: str):
    (tmp_path / f"{module}.py").write_text(text)

    with pytest.raises(BadRequest, match=rf"unit task 'spell' \({module}:Spell\) cannot be imported: {fault}"):
        make_runner(make_record(tmp_path, f"{module}:Spell"))


@pytest.mark.parametrize("below", ["", "apps", "apps/../elsewhere", "apps/link"])
def test_code_outside_of_the_directory_of_apps_does_not_run(tmp_path: Path, module: str, below: str):
    outside = tmp_path if below in ("", "apps") else tmp_path / "elsewhere"
    (tmp_path / "apps").mkdir()
    outside.mkdir(exist_ok=True)
    (tmp_path / "apps" / "link").symlink_to(outside)
    ran = tmp_path / "ran"
    (outside / f"{module}.py").write_text(f"open({str(ran)!r}, 'w')")
    root = tmp_path / below if below.startswith("apps/") else tmp_path
    apps_dir = str(tmp_path / "apps") if below else ""

    with pytest.raises(Forbidden, match="OMNIBUS_EXECUTOR_APPS_DIR"):
        engine("spell", ExecutorSettings(source=encode_source(make_record(root, f"{module}:Spell")), apps_dir=apps_dir))

    assert not ran.exists()
    assert not {str(root), str(outside)} & set(sys.path)


def test_a_root_that_is_not_on_this_node_is_named(tmp_path: Path):
    with pytest.raises(BadRequest, match="needs the directory .*/nowhere; mount it on this node too"):
        make_runner(make_record(tmp_path / "nowhere", "m:Spell"))


def test_a_module_of_the_same_name_that_is_loaded_already_is_not_taken_for_it(tmp_path: Path, module: str):
    (tmp_path / "textwrap.py").write_text((tmp_path / f"{module}.py").read_text())

    with pytest.raises(BadRequest, match="has its module 'textwrap' in .*, but .* is loaded; rename the app's module"):
        make_runner(make_record(tmp_path, "textwrap:Spell"))


def test_executors_of_other_tasks_do_not_load_what_apps_are_written_with():
    code = "import sys, omnibus.executor.python_task; print(*sys.modules)"

    modules = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60).split()

    assert "omnibus.task" not in modules
    assert "pydantic" not in modules


# All of it


async def test_an_executor_of_an_own_task_answers_on_the_bus(
    nats_url: str, tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
):
    variables = {
        "BUS_URL": nats_url, "SIDECAR_SOCKET": str(tmp_path / "s"), "SIDECAR_NODE": nodes.NODE,
        "EXECUTOR_MODEL": "spell", "EXECUTOR_FAMILY": "python", "EXECUTOR_OPTION": "spell",
        "EXECUTOR_COMPONENTS": "spell", "EXECUTOR_TASKS": "spell", "EXECUTOR_ENGINE": "omnibus.executor.python_task:engine",
        "EXECUTOR_CHECKPOINT": encode_source(make_record(tmp_path, f"{module}:Spell")), "EXECUTOR_APPS_DIR": str(tmp_path),
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(f"OMNIBUS_{name}", value)

    async with nodes.run_sidecar(tmp_path):
        executor = ExecutorService()
        bus = await NatsBus.connect(BusSettings(url=nats_url), "hand")
        try:
            await executor.startup()
            good = await call_task(bus, {"text": "cab"})
            bad = await call_task(bus, {"text": 7})
            again = await call_task(bus, {"text": "b"})
        finally:
            await executor.drain(1.0)
            await executor.shutdown()
            await bus.drain()

    letters = [reply.data.get("value") for reply in good if isinstance(reply, Chunk) and reply.output == "letters"]
    assert [letter for letter in letters if letter] == ["c", "a", "b"]
    assert [reply.data for reply in good if isinstance(reply, Chunk) and reply.output == "count"] == [{"value": 3}]
    assert isinstance(good[-1], Hop)
    assert [reply.problem.code for reply in bad if isinstance(reply, NodeFailed)] == ["bad_request"]
    assert isinstance(again[-1], Hop)
    assert sys.modules[module].DONE == ["spell"]


async def call_task(bus: NatsBus, inputs: dict[str, Any]) -> list[Any]:
    """Call the unit task ``spell`` once by hand and return all replies."""
    node = GraphNode("spell", "spell", inputs, graph.call_digest("spell", inputs))
    body = graph.encode_invocation(make_invocation([node], ["x"], [(0, "letters"), (0, "count")]))
    parts = [part async for part in bus.request_stream(subjects.task_subject("spell"), body, PATIENCE)]
    return [message for part in parts for message in messages.decode_replies(part)]
