"""The demo is one command: it starts everything, shows an answer and its way, and leaves nothing."""

import os
import re
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from omnibus_models.world import looking, scenes
from tests.e2e.system import ROOT
from tests.unit.models import files

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def demo(tmp_path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    paths = os.pathsep.join([str(ROOT), str(ROOT / "shared")])
    return subprocess.run(
        [sys.executable, "-m", "omnibus.cli", "demo", "--out", str(tmp_path / "answer.wav"), *arguments],
        env={**os.environ, "PYTHONPATH": paths, "XDG_RUNTIME_DIR": str(tmp_path)},
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=280,
        check=False,
    )


def test_the_demo_answers_in_text_and_speech_and_shows_the_way(tmp_path: Path):
    (tmp_path / "photo.png").write_bytes(files.picture(1))

    done = demo(tmp_path, "--image", str(tmp_path / "photo.png"), "--prompt", "What is in this picture?")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    with wave.open(str(tmp_path / "answer.wav")) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
    assert "What is in this picture?" in done.stdout
    assert re.search(r"first sound after [\d.]+ s", done.stdout)
    for component in ("vision", "audio", "thinker", "talker", "vocoder"):
        assert re.search(rf"\[\d\] {component} +on qwen2_5-omni-tiny-\w+-0", done.stdout)
        assert re.search(rf"\[\d\] {component} +\|.*\| inputs", done.stdout)
    assert "status  done" in done.stdout


def test_the_demo_draws_what_it_is_told(tmp_path: Path):
    done = demo(tmp_path, "--seed", "1")

    assert done.returncode == 0, done.stdout + done.stderr
    (wish,) = re.findall(r"^asking qwen-image-world to draw: (.+)$", done.stdout, re.MULTILINE)
    assert f"who looks at its pixels and is no model sees: {wish}: right" in done.stdout
    assert looking.seen(np.asarray(Image.open(tmp_path / "answer.png"))) == scenes.said(wish)


def test_the_demo_of_an_unknown_model_says_what_there_is(tmp_path: Path):
    done = demo(tmp_path, "--model", "gpt-9")

    assert done.returncode == 1
    assert "qwen2.5-omni-tiny" in done.stderr


def test_the_demo_names_a_file_that_is_not_there(tmp_path: Path):
    done = demo(tmp_path, "--image", "no-such-file.jpg")

    assert done.returncode == 1
    assert "no-such-file.jpg" in done.stderr
    assert "Traceback" not in done.stderr
