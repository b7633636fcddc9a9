"""Clients' own server tests run unchanged against a running system."""

import asyncio
import re
import shutil
from pathlib import Path

import pytest

from tests.clients.features import declare_features
from tests.clients.test_clients import PYTHON3, require_installed, run_client
from tests.clients.traffic import ClientTraffic
from tests.e2e.system import System

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

STANDARD = Path(__file__).parent / "langchain" / "standard_chats.py"
SECONDS = 240.0
#: Tests that pass at least: 43 of the scripted model and 5 of the trained one. Fewer means that some are skipped.
PASSED = 48


@pytest.mark.timeout(600)
@declare_features("langchain-tests", "chat stream image audio tools JSON")
def test_langchains_standard_tests_pass(system: System, traffic: ClientTraffic, media: Path, tmp_path: Path) -> None:
    require_installed(PYTHON3)
    for each in (STANDARD, *media.iterdir()):
        shutil.copy(each, tmp_path)
    asyncio.run(system.becomes_ready())

    python = str(PYTHON3 / "bin" / "python")
    command = [python, "-m", "pytest", "-q", "-ra", "-o", "asyncio_mode=auto", STANDARD.name]
    process = run_client(command, traffic, tmp_path, SECONDS)

    assert process.returncode == 0, process.stdout[-8000:] + process.stderr[-2000:]
    match = re.search(r"(\d+) passed", process.stdout)
    assert match is not None
    assert int(match[1]) >= PASSED, process.stdout[-4000:]
