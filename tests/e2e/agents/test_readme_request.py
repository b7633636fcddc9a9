"""The README's request about an image, through executors on two machines that joined."""

import asyncio
import json
import re
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnibus.up.tiny_models import tiny_models
from tests.e2e.agents.cluster import START_SECONDS, AgentCluster, count_states, start_cluster
from tests.e2e.test_readme import ROOT, code_blocks

pytestmark = pytest.mark.e2e

MODEL = "qwen2.5-omni-world"
SLOTS = "4"


@pytest.fixture
async def declarations() -> dict[str, object]:
    return dict(json.loads(await tiny_models([MODEL]))["models"])


@pytest.fixture
def cluster(tmp_path: Path, declarations: dict[str, object]) -> Iterator[AgentCluster]:
    settings = {"OMNIBUS_SIDECAR_PORT": "0", "OMNIBUS_SIDECAR_ARENA_MIB": "64"}
    with start_cluster(tmp_path, declarations, settings) as cluster:
        yield cluster


async def test_the_request_of_the_readme_is_answered_by_executors_on_two_machines(
    cluster: AgentCluster, tmp_path: Path
) -> None:
    two = (cluster.name(2), cluster.name(3))
    for name in two:
        cluster.start_agent(name, "--slots", SLOTS)
    live = await cluster.wait_for_agents(lambda live: count_states(live) == {"ready": 6}, START_SECONDS)
    await cluster.system.becomes_ready()
    assert all(live[name].executors for name in two)
    program = next(block for block in code_blocks("python") if MODEL in block)
    program = program.replace("http://127.0.0.1:8000", cluster.system.url).replace("docs/assets", f"{ROOT}/docs/assets")
    caption = re.search(r"!\[([^]]*)\]\(docs/assets/demo-input.png\)", (ROOT / "README.md").read_text())
    script = tmp_path / "readme.py"
    script.write_text(program)

    printed = await asyncio.to_thread(
        subprocess.check_output, [sys.executable, script], cwd=tmp_path, text=True, timeout=60
    )

    assert caption is not None
    assert caption[1] in printed
    with wave.open(str(tmp_path / "answer.wav")) as speech:
        assert speech.getnframes() > 1000
