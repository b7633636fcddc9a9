"""Examples of docs/clients.md and examples/clients run against a running system."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.clients.features import PageExample, read_examples
from tests.clients.traffic import ClientTraffic
from tests.e2e.system import System

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

ROOT = Path(__file__).parents[2]
#: Environments of clients, below the root: those of Python, those of them that need an older openai or a newer one,
#: and of Node.js.
PYTHON3 = ROOT / os.environ.get("CLIENTS_VENV", ".venv-clients")
PYTHON2 = ROOT / os.environ.get("OPENAI2_VENV", ".venv-clients-openai2")
VOICE = ROOT / os.environ.get("VOICE_VENV", ".venv-clients-voice")
COMMANDS_ENV = ROOT / os.environ.get("COMMANDS_VENV", ".venv-clients-commands")
NODE_MODULES = PYTHON3 / "node" / "node_modules"
NEEDS_OPENAI2 = ("litellm", "llama-index")
#: Commands with separate environments, and those of Node.js.
COMMANDS, NODE_COMMANDS = ("llm", "lm-eval"), ("Codex", "Claude Code")
#: Seconds that an example may take; importing a client takes most of them on a busy machine.
EXAMPLE_SECONDS = 240.0

SUFFIXES = {"python": "py", "javascript": "mjs", "sh": "sh"}
EXAMPLES = [
    pytest.param(each, id=f"{each.title}-{each.number}")
    for each in read_examples()
    if each.language != "sh" or each.title in (*COMMANDS, *NODE_COMMANDS)
]


def make_command(title: str, language: str, directory: Path) -> list[str]:
    """Program that runs an example in ``directory``; skips the test if it is not installed."""
    if language == "javascript" or title in NODE_COMMANDS:
        if not NODE_MODULES.is_dir() or shutil.which("node") is None:
            pytest.skip("clients of Node.js are not installed: make install-clients")
        (directory / "node_modules").symlink_to(NODE_MODULES)
        return ["node"] if language == "javascript" else make_shell(NODE_MODULES / ".bin")
    environment = PYTHON2 if title in NEEDS_OPENAI2 else COMMANDS_ENV if title in COMMANDS else PYTHON3
    require_installed(environment)
    if language == "sh":
        return make_shell(environment / "bin")
    return [str(environment / "bin" / "python")]


def make_shell(programs: Path) -> list[str]:
    """Return the shell that finds ``programs`` first."""
    return ["env", f"PATH={programs}:{os.environ['PATH']}", "bash", "-euo", "pipefail"]


def run_client(
    command: Sequence[str], gateway: System | ClientTraffic, home: Path, seconds: float, directory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a client program against ``gateway``, directly or through a relay.

    It runs in ``directory``, by default in its ``home``. Raises ``subprocess.TimeoutExpired``.
    """
    return subprocess.run(
        command,
        cwd=directory or home,
        # Nothing of the tests' own Python, and no look at the internet for what a model costs.
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LITELLM_LOCAL_MODEL_COST_MAP": "true",
            "OPENAI_BASE_URL": f"{gateway.url}/v1",
            "OPENAI_API_KEY": "none",
            "ANTHROPIC_BASE_URL": gateway.url,
            "ANTHROPIC_API_KEY": "none",
            "OLLAMA_HOST": gateway.url,
        },
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def require_installed(environment: Path) -> None:
    """Skip the test if ``environment`` is not installed."""
    if not (environment / ".installed").exists():
        pytest.skip(f"{environment.name}, which has this client, is not installed: make install-clients")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_page_runs(
    system: System, traffic: ClientTraffic, media: Path, tmp_path: Path, example: PageExample
) -> None:
    program = make_command(example.title, example.language, tmp_path)
    for each in media.iterdir():
        shutil.copy(each, tmp_path)
    script = tmp_path / f"example.{SUFFIXES[example.language]}"
    script.write_text(example.code)
    asyncio.run(system.becomes_ready())

    process = run_client([*program, str(script)], traffic, tmp_path, EXAMPLE_SECONDS)

    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]
    assert traffic.list_features() == example.features
