"""Tests that others have for servers and their clients, run against this one."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from tests.clients.test_clients import JUDGES, ROOT, require_installed
from tests.e2e.system import System

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

#: Seconds that the tests of one judge may take; importing them takes most of these on a busy machine.
JUDGE_SECONDS = 500.0


def judge(system: System, directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Python of the judges with ``arguments``."""
    require_installed(JUDGES)
    asyncio.run(system.becomes_ready())
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "LANGSMITH_TRACING": "false"}
    return subprocess.run(
        [str(JUDGES / "bin" / "python"), *arguments],
        cwd=directory,
        env={**environment, "OPENAI_BASE_URL": f"{system.url}/v1", "OPENAI_API_KEY": "none"},
        capture_output=True,
        text=True,
        timeout=JUDGE_SECONDS,
        check=False,
    )


@pytest.mark.timeout(600)
def test_the_standard_tests_of_langchain_pass(system: System, tmp_path: Path) -> None:
    script = tmp_path / "test_standard.py"
    script.write_text((ROOT / "tests" / "clients" / "langchain_standard.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")

    ended = judge(system, tmp_path, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", str(script))

    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    assert " passed" in ended.stdout
