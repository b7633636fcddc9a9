"""``omnibus serve``: one command from a checkpoint to an answer."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from omnibus.process.spec import PACKAGE_PATH
from omnibus_models import tiny
from tests.e2e import warm
from tests.e2e.system import ROOT
from tests.gguf_files import write_gguf

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

_START_SECONDS = 240
_STOP_SECONDS = 60


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a checkpoint whose path has a space, and the same model in GGUF."""
    directory = tmp_path_factory.mktemp("serve")
    write_gguf(tiny.build("qwen2", directory / "a model"), directory / "a-Q8_0.gguf", "Q8_0")
    return directory


def start_omnibus(here: Path, *arguments: str) -> "subprocess.Popen[str]":
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{PACKAGE_PATH}", "XDG_RUNTIME_DIR": str(here)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        warm.omnibus_command(*arguments), env=env, cwd=here, text=True, stdin=pipe, stdout=pipe, stderr=pipe
    )


def run_omnibus(here: Path, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """Run a command to its end. Returns exit code, output and errors."""
    with start_omnibus(here, *arguments) as process:
        output, errors = process.communicate(stdin, _START_SECONDS)
    return process.returncode, output, errors


def ask(command: str) -> dict[str, object]:
    """Run a curl command and return its JSON."""
    answer = subprocess.run(
        ["bash", "-c", f"{command} --silent"], capture_output=True, text=True, check=True, timeout=_START_SECONDS
    )
    result: dict[str, object] = json.loads(answer.stdout)
    return result


@pytest.fixture(scope="module")
def printed(here: Path) -> Iterator[list[str]]:
    """Lines that the command prints until the one with curl, while it serves."""
    arguments = ("./a model/", "--port", "0", "--name", "first", "--max-model-len", "512", "--quiet")
    with start_omnibus(here, "serve", *arguments) as process:
        lines: list[str] = []
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            lines.append(line.strip())
            if line.startswith("curl"):
                break
        assert process.poll() is None, process.stderr.read()
        yield lines
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=_STOP_SECONDS)
    assert process.returncode == 0


def test_the_printed_command_has_an_answer_of_the_model(printed: list[str]):
    answer = ask(printed[-1])

    assert answer["model"] == "a model"
    assert answer["usage"]["completion_tokens"] > 0  # type: ignore[index]
    assert any(line.startswith("Serving a model (qwen2, float32 on cpu, 512 tokens, 16 at a time)") for line in printed)
    [base_url] = [line.split()[2] for line in printed if line.startswith("Base URL: ")]
    assert printed[-1].startswith(f"curl {base_url}/chat/completions ")


def test_a_chat_beside_another_system_prints_answers_alone_and_stops_its_own(printed: list[str], here: Path):
    code, output, errors = run_omnibus(
        here, "serve", "a model", "--chat", "--name", "second", stdin="Hello\n\nHello\n/exit\nnever\n"
    )

    assert (code, errors) == (0, "")
    assert ">>>" not in output
    assert output.count("\n") >= 2
    assert run_omnibus(here, "ps", "--quiet")[1].split() == ["first"]


def test_a_question_of_a_chat_has_the_earlier_ones_before_it(printed: list[str], here: Path):
    """Two questions exceed the context together, and the error ends no chat."""
    question = "Hello" * 100
    alone = ask(printed[-1].replace("Hello", question))
    assert 256 < alone["usage"]["prompt_tokens"] < 512  # type: ignore[index]
    [base_url] = [line.split()[2] for line in printed if line.startswith("Base URL: ")]
    code = f"import asyncio; from omnibus.cli.chat import chat; asyncio.run(chat({base_url!r}, 'a model'))"
    env = {**os.environ, "PYTHONPATH": PACKAGE_PATH}

    chat = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        input=f"{question}\n{question}",
        capture_output=True,
        text=True,
        check=True,
    )

    assert chat.stdout.endswith("\n")
    assert "the model's context 512" in chat.stderr


def test_an_architecture_that_only_the_examination_knows_is_refused_before_servers_start(here: Path):
    (here / "sam").mkdir(exist_ok=True)
    (here / "sam" / "config.json").write_text('{"model_type": "sam"}')
    save_file({"shared.weight": np.ones(8, np.float32)}, here / "sam" / "model.safetensors")

    code, _, errors = run_omnibus(here, "serve", "sam", "--port", "0")

    assert code == 78
    assert "unknown model family 'sam'" in errors
    assert "fork-server" in errors
    assert "nats " not in errors


def test_ctrl_c_during_the_start_leaves_nothing(here: Path):
    with start_omnibus(here, "serve", "a model", "--port", "0", "--name", "stopped") as process:
        assert process.stderr is not None
        assert process.stderr.readline()  # of the first process that is ready
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=_STOP_SECONDS)

    assert process.returncode == 128 + signal.SIGINT
    assert "stopped" not in run_omnibus(here, "ps", "--quiet")[1]


def test_a_gguf_file_runs_in_the_background_and_is_described_as_json(here: Path):
    code, output, errors = run_omnibus(
        here, "serve", "a-Q8_0.gguf", "--port", "0", "--name", "behind", "--detach", "--json", "--max-model-len", "99"
    )
    try:
        assert code == 0, errors
        run = json.loads(output)
        assert (run["name"], run["model"], run["device"]) == ("behind", "a-Q8_0", "cpu")
        answer = ask(run["curl"])
        assert answer.get("model") == "a-Q8_0", answer
    finally:
        run_omnibus(here, "down", "--run", "behind")
