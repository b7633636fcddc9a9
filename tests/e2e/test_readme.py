"""The README's commands work verbatim."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
import wave
from pathlib import Path

import pytest

from omnibus.families import catalog
from omnibus.up.ports import free_ports
from omnibus.up.tiny_models import tiny_models
from tests.e2e import warm
from tests.paths.table import PATHS

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

README = (ROOT / "README.md").read_text()


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def list_commands() -> list[str]:
    """Shell commands of the README, with continued lines joined and without comments."""
    text = "\n".join(code_blocks("sh")).replace("\\\n", " ")
    return [line.partition("    # ")[0].strip() for line in text.splitlines() if line.strip()]


def run_shell(command: str, cwd: Path) -> str:
    process = subprocess.run(
        ["bash", "-c", command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "shared")},
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
    )
    assert process.returncode == 0, f"{command}\n{process.stdout[-4000:]}"
    return process.stdout


def localize_command(command: str) -> str:
    """The command for this environment: forked instead of started from a new .venv."""
    return command.replace(".venv/bin/omnibus", shlex.join(warm.omnibus_command()))


def test_the_readme_begins_with_a_sentence_a_picture_and_two_commands() -> None:
    assert README.index("docs/request.svg") < README.index("make demo") < README.index("make test")
    assert [command.split()[:2] for command in list_commands()[:2]] == [["make", "demo"], ["make", "test"]]
    assert (ROOT / "docs/request.svg").exists()


@pytest.mark.parametrize("command", [command for command in list_commands() if command.startswith("make")])
def test_every_make_command_exists(command: str) -> None:
    target = shlex.split(command)[1]

    assert re.search(rf"^{target}:.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_every_link_leads_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]

    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_an_example_of_a_model_fits_on_a_screen() -> None:
    assert len((ROOT / "examples" / "shout.py").read_text().splitlines()) <= 50


@pytest.mark.parametrize("example", ["shout", "arena"])
def test_the_commands_beside_the_examples_work(example: str) -> None:
    text = (ROOT / "docs" / "apps.md").read_text()
    (command,) = re.findall(rf"^\.venv/bin/omnibus app run examples/{example}\.py .*$", text, re.MULTILINE)

    output = run_shell(localize_command(command), ROOT)

    if example == "shout":
        assert output == "HELLO! HELLO! \n"
    else:
        assert {name for line in output.splitlines() for name in json.loads(line)} == {
            "qwen2.5-vl-tiny", "qwen2.5-vl-tiny-b",
        }  # fmt: skip


@pytest.mark.parametrize("command", ["omnibus models list", "omnibus models show qwen2_5_omni"])
def test_families_are_listed_and_shown(command: str) -> None:
    assert f"\n{command} " in (ROOT / "docs" / "models.md").read_text()
    assert "vision" in run_shell(localize_command(f".venv/bin/{command}"), ROOT)


def test_no_command_is_left_out() -> None:
    """Commands of first paths run in ``test_paths.py``."""
    path_commands = {command.text.replace("\\\n", " ") for path in PATHS for command in (*path.commands, *path.beyond)}
    path_commands |= {path.system.text for path in PATHS if path.system is not None}
    watching = ".venv/bin/omnibus tail"  # it runs until Ctrl-C

    left = [command for command in list_commands() if command not in path_commands and not command.startswith("make ")]

    assert left == [watching]


def test_the_demo_answers_in_text_and_speech_and_leaves_nothing_running(tmp_path: Path) -> None:
    out = tmp_path / "answer.wav"

    env = {**os.environ, "PYTHONPATH": str(ROOT / "shared")}
    with (tmp_path / "log").open("wb") as log:
        demo = subprocess.Popen(
            [sys.executable, "-m", "omnibus.cli", "demo", "--out", str(out)], cwd=ROOT, env=env, stdout=log, stderr=log
        )
    arena = Path(f"/dev/shm/omnibus-local-{demo.pid}")  # named after its supervisor, which is the demo itself
    was_seen, give_up = False, time.monotonic() + 200
    while demo.poll() is None and time.monotonic() < give_up:
        was_seen = was_seen or arena.exists()
        time.sleep(0.1)
    demo.kill()
    output = (tmp_path / "log").read_text()

    assert demo.wait(10) == 0, output
    assert "its route" in output
    assert "everything is stopped" in output
    with wave.open(str(out)) as file:
        assert file.getframerate() == 24000
    assert was_seen
    assert not arena.exists()


async def test_the_commands_against_a_running_system_work(tmp_path: Path) -> None:
    """`omnibus up`, then each curl, the Python example and each inspection command."""
    (port,) = free_ports(1)
    warm_stack = warm.warm_stack_class(warm.fork_server_socket())
    async with warm_stack(await tiny_models([*catalog.WORLD]), port=port) as stack:
        curl_commands = [
            line.replace("127.0.0.1:8000", f"127.0.0.1:{port}") for line in list_commands() if line.startswith("curl")
        ]
        answers = [json.loads(run_shell(f"{line} -s", ROOT).splitlines()[-1]) for line in curl_commands]
        ready = json.loads(run_shell(f"curl -s http://127.0.0.1:{port}/readyz", ROOT))
        (example,) = code_blocks("python")
        script = tmp_path / "example.py"
        script.write_text(example.replace("127.0.0.1:8000", f"127.0.0.1:{port}"))
        (tmp_path / "docs").symlink_to(ROOT / "docs")
        answer = run_shell(f"{sys.executable} {script}", tmp_path)
        id = answers[0]["id"].removeprefix("chatcmpl-")
        looks = [
            localize_command(line).replace(" ID", f" {id}")
            for line in list_commands()
            if "omnibus show " in line or "omnibus replay " in line
        ]
        outputs = [run_shell(f"{look} --nats {stack.nats.url}", ROOT) for look in looks]

    assert answers[0]["choices"][0]["message"]["content"] == "two red circles on blue"
    assert ready["ready"] is True
    assert answer == "a black circle on red at the right\n"
    with wave.open(str(tmp_path / "answer.wav")) as speech:
        assert speech.getnframes() > 12000
    assert "status  done" in outputs[0]
    assert "identical to the recorded answer" in outputs[1]
