"""Third-party clients hold voice conversations: audio in, audio out."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from omnibus_models.world import audio_oracle, scenes, tone_synth
from tests.clients.features import declare_features
from tests.clients.test_clients import PYTHON3, ROOT, VOICE, require_installed, run_client
from tests.e2e.system import System
from tests.tones import record_tones

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

RATE = tone_synth.OUTPUT_RATE_HERTZ
#: Audio questions, and the seconds of silence before and after them.
QUESTIONS = ("low", "high low", "high", "middle")
BEFORE, AFTER = 0.3, 0.5
#: Seconds that a conversation may take; importing a client takes some of them.
CONVERSATION_SECONDS = 300.0
CLIENTS = [
    pytest.param("with_openai", PYTHON3, id="openai", marks=declare_features("openai", "stream image audio tools")),
    pytest.param(
        "with_agents", PYTHON3, id="openai-agents", marks=declare_features("openai-agents", "stream image audio tools")
    ),
    pytest.param(
        "with_livekit",
        VOICE,
        id="livekit-plugins-openai",
        marks=declare_features("livekit-plugins-openai", "stream image audio tools"),
    ),
    pytest.param(
        "with_pipecat", VOICE, id="pipecat-ai", marks=declare_features("pipecat-ai", "stream image audio tools")
    ),
]


def write_question(directory: Path, name: str) -> None:
    """Write tones in a microphone's format: 16 bit at 24 kHz."""
    whole = record_tones(name.split(), 7, RATE, BEFORE, AFTER)
    (directory / f"{name}.pcm").write_bytes((whole * 32767).astype("<i2").tobytes())


def words_of(directory: Path, name: str) -> list[str] | None:
    """The words that are spoken in an answer."""
    return audio_oracle.recognize_words(np.frombuffer((directory / f"{name}.answer.pcm").read_bytes(), "<i2") / 32767)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("client", "environment"), CLIENTS)
def test_a_client_talks_by_sound_is_interrupted_calls_a_tool_and_shows_a_picture(
    system: System, tmp_path: Path, client: str, environment: Path
) -> None:
    require_installed(environment)
    asyncio.run(system.becomes_ready())
    scene = scenes.held_out_scenes()[0]
    (tmp_path / "seen.png").write_bytes(scenes.encode_png(scenes.draw_scene(scene, np.random.default_rng(3))))
    for name in QUESTIONS:
        write_question(tmp_path, name)

    command = [str(environment / "bin" / "python"), "-m", f"tests.clients.voice.{client}", str(tmp_path)]
    process = run_client(command, system, tmp_path, CONVERSATION_SECONDS, ROOT)

    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]
    turns = json.loads((tmp_path / "turns.json").read_text())
    for name in ("low", "high low", "middle"):
        assert (turns[name]["status"], words_of(tmp_path, name)) == ("completed", name.split()), turns
    assert words_of(tmp_path, "picture") == scene.caption.split()
    assert turns["tool"]["call"]["name"] == "play"
    assert json.loads(turns["tool"]["call"]["arguments"])["tone"] in tone_synth.TONES
    assert (turns["told"]["status"], turns["told"]["sound"] > 0) == ("completed", True)
    assert turns["interrupted"]["status"] == "cancelled"
    assert turns["interrupted"]["truncated_ms"] > 0
