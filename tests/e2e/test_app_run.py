"""``omnibus app run``: one command from a file to an answer, or to an Omnibus that serves it."""

import json
import os
import re
import signal
import subprocess
import urllib.request
from pathlib import Path
from textwrap import dedent

import pytest

from omnibus.process.spec import PACKAGE_PATH
from tests.e2e import warm
from tests.e2e.system import ROOT

pytestmark = pytest.mark.e2e

#: An app that brings its own unit task, so that no model is needed.
SHOUT = """
    from omnibus.task import TaskInput, TaskOutput, UnitTask


    class Words(TaskInput):
        text: str


    class Loud(TaskOutput):
        text: str


    class Shout(UnitTask[Words, Loud]):
        async def run(self, words: Words) -> Loud:
            return Loud(text=words.text.upper() + "!")


    TASK = Shout()


    async def serve(request: str) -> str:
        return await (await TASK(Words(text=request))).text
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with the app ``shout.py``."""
    (tmp_path / "shout.py").write_text(dedent(SHOUT))
    return tmp_path


def make_environment(here: Path) -> dict[str, str]:
    paths = f"{ROOT}:{PACKAGE_PATH}"
    return {**os.environ, "PYTHONPATH": paths, "XDG_RUNTIME_DIR": str(here)}


def run_omnibus(here: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        warm.omnibus_command(*arguments),
        env=make_environment(here),
        cwd=here,
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
    )


def test_a_file_and_a_request_are_enough_for_an_answer(here: Path):
    process = run_omnibus(here, "app", "run", "shout.py", '"hello"', "--no-models")

    assert (process.returncode, process.stdout) == (0, "HELLO!\n"), process.stderr
    assert process.stderr == ""
    assert run_omnibus(here, "app", "list").returncode == 1  # nothing is left


def test_it_needs_no_models_unless_its_tasks_do(here: Path):
    process = run_omnibus(here, "app", "run", "shout.py", '"hello"')

    assert (process.returncode, process.stdout, process.stderr) == (0, "HELLO!\n", "")


def test_the_tiny_models_that_its_tasks_name_are_started_and_no_others(here: Path):
    question = json.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, "temperature": 0})
    argv = warm.omnibus_command("app", "run", str(ROOT / "examples" / "mllm.py"), "--port", "0")
    with subprocess.Popen(argv, env=make_environment(here), cwd=here, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            up = next(line for line in running.stdout if "mllm is up" in line)
            url = re.search(r"POST (http://\S+?)/v1", up)[1]
            with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as answer:
                models = {model["id"] for model in json.load(answer)["data"]}
            assert models == {"qwen2.5-vl-tiny", "my-mllm"}
            completion = json.loads(run_omnibus(here, "app", "invoke", "mllm", question).stdout)
            assert completion["text"]
        finally:
            running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0


def test_another_model_has_to_be_declared(here: Path):
    task = "from omnibus.task import Think\nTASK = Think(model='mine', component='thinker')\n"
    (here / "needs.py").write_text(f"{task}async def serve(request): ...\n")

    process = run_omnibus(here, "app", "run", "needs.py", "1")

    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr == "omnibus: needs needs mine: declare it in a file and name that with --models FILE\n"


def test_a_file_that_is_no_app_is_said_in_one_line(here: Path):
    (here / "broken.py").write_text("import nonsense\n")

    process = run_omnibus(here, "app", "run", "broken.py", "1", "--no-models")

    assert (process.returncode, process.stdout) == (1, "")
    assert "No module named 'nonsense' (broken.py, line 1)" in process.stderr
    assert process.stderr.count("\n") == 1


def test_without_a_request_it_stays_and_other_commands_find_it(here: Path):
    argv = warm.omnibus_command("app", "run", "shout.py", "--port", "0", "--no-models")
    with subprocess.Popen(argv, env=make_environment(here), cwd=here, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert any("shout is up" in line for line in running.stdout)

            assert run_omnibus(here, "app", "invoke", "shout", '"hello"').stdout == "HELLO!\n"
            [app] = json.loads(run_omnibus(here, "app", "list", "--json").stdout)
            assert (app["name"], app["version"], app["worker"]["state"]) == ("shout", 1, "ready")
            assert re.search(r"shout-shout-0\S* ok", run_omnibus(here, "tasks").stdout)
            assert "updated, version 2" in run_omnibus(here, "app", "update", "shout").stdout
            assert run_omnibus(here, "app", "unregister", "shout").returncode == 0
            result = run_omnibus(here, "app", "invoke", "shout", '"hello"')
            assert (result.returncode, result.stderr) == (1, "omnibus: unknown app 'shout' (registered apps: none)\n")
        finally:
            running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
