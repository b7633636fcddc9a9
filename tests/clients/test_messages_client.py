"""Anthropic's client, which checks answers strictly: tools, limits, errors, and streams that it leaves."""

import asyncio
from pathlib import Path

import pytest

from tests.clients.features import declare_features
from tests.clients.test_clients import EXAMPLE_SECONDS, PYTHON3, ROOT, require_installed, run_client
from tests.clients.traffic import ClientTraffic
from tests.e2e.system import System

pytestmark = [pytest.mark.clients, pytest.mark.e2e]


@pytest.mark.timeout(600)
@declare_features("anthropic", "chat stream tools")
def test_anthropics_client_reads_every_answer_strictly(system: System, traffic: ClientTraffic, tmp_path: Path) -> None:
    require_installed(PYTHON3)
    asyncio.run(system.becomes_ready())

    command = [str(PYTHON3 / "bin" / "python"), "-m", "tests.clients.messages.with_anthropic"]
    process = run_client(command, traffic, tmp_path, EXAMPLE_SECONDS, ROOT)

    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]
