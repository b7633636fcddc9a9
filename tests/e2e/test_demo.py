"""The demo is one command that starts everything and shows an answer.

It also shows the answer's path, and leaves nothing.
"""

import os
import re
import subprocess
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from omnibus.process.spec import PACKAGE_PATH
from omnibus_models.world import image_oracle, scenes
from tests.e2e import warm
from tests.e2e.system import ROOT
from tests.unit.models import files

pytestmark = pytest.mark.e2e


def run_demo(tmp_path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    paths = f"{ROOT}:{PACKAGE_PATH}"
    return subprocess.run(
        warm.omnibus_command("demo", "--out", str(tmp_path / "answer.wav"), *arguments),
        env={**os.environ, "PYTHONPATH": paths, "XDG_RUNTIME_DIR": str(tmp_path)},
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=280,
        check=False,
    )


def test_the_demo_names_and_speaks_what_it_is_shown_draws_what_it_is_told_and_shows_the_way(tmp_path: Path):
    process = run_demo(tmp_path, "--seed", "1")

    assert process.returncode == 0, process.stdout + process.stderr
    assert "Traceback" not in process.stdout + process.stderr
    with wave.open(str(tmp_path / "answer.wav")) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
    assert "What do you see and hear?" in process.stdout
    (right,) = re.findall(r"^expected answer: (.+): right$", process.stdout, re.MULTILINE)
    assert right in process.stdout.splitlines()
    assert f"tones decoded without a model: {right}: the same" in process.stdout
    (wish,) = re.findall(r"^asking qwen-image-world to draw: (.+)$", process.stdout, re.MULTILINE)
    assert f"a program without a model sees: {wish}: right" in process.stdout
    assert f"qwen2.5-omni-world sees: {wish}: right" in process.stdout
    scene = image_oracle.recognize_scene(np.asarray(Image.open(tmp_path / "answer.png")))
    assert scene == scenes.scene_of_caption(wish)
    assert re.search(r"first audio after [\d.]+ s", process.stdout)
    for component in ("vision", "audio", "thinker", "talker", "vocoder"):
        assert re.search(rf"\[\d\] {component} +on qwen2_5-omni-world-\w+-0", process.stdout)
        # A bar, then how long each phase took and when it ended.
        assert re.search(rf"^ +\[\d\] {component} +\|.*█.*\|( +[\d.]+| +-){{6}}$", process.stdout, re.MULTILINE)
    assert "status  done" in process.stdout
    check_readme(process.stdout.replace(f"{tmp_path}{os.sep}", ""), np.asarray(Image.open(tmp_path / "answer.png")))


def check_readme(output: str, picture: Any) -> None:
    """Check that the README shows this run's images and output.

    Times may differ.
    """
    readme = (ROOT / "README.md").read_text()
    (example,) = re.findall(r"^```text\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    lines = iter(mask_times(output).splitlines())
    assert [line for line in mask_times(example).splitlines() if line not in lines] == []  # in this order
    images = re.findall(r"!\[([^]]+)\]\((docs/assets/demo-\w+\.png)\)", readme)
    assert len(images) == 2
    for caption, path in images:
        image = np.asarray(Image.open(ROOT / path).convert("RGB"))[1::3, 1::3]  # three times the size
        assert image_oracle.recognize_scene(image) == scenes.scene_of_caption(caption)
        assert caption in output
    assert np.abs(image.astype(int) - picture[..., :3]).mean() < 2


def mask_times(text: str) -> str:
    return re.sub(r"\d+\.\d+ s", "N s", text)


def test_the_demo_takes_a_picture_and_a_question_of_ones_own(tmp_path: Path):
    scene = scenes.ShapeScene(1, "red", "circle", "middle", "white")
    (tmp_path / "photo.png").write_bytes(scenes.encode_png(scenes.draw_scene(scene, np.random.default_rng(0))))

    process = run_demo(tmp_path, "--image", str(tmp_path / "photo.png"), "--prompt", "What do you see?")

    assert process.returncode == 0, process.stdout + process.stderr
    assert "What do you see?" in process.stdout
    assert "expected answer" not in process.stdout  # the output is unknown
    assert "qwen-image-world" not in process.stdout


@pytest.mark.nightly
def test_the_demo_runs_random_weights_as_well(tmp_path: Path):
    (tmp_path / "photo.png").write_bytes(files.make_picture(1))

    process = run_demo(tmp_path, "--model", "qwen2.5-vl-tiny", "--image", str(tmp_path / "photo.png"))

    assert process.returncode == 0, process.stdout + process.stderr
    assert "expect gibberish" in process.stdout
    assert "status  done" in process.stdout


def test_the_demo_of_an_unknown_model_says_what_there_is(tmp_path: Path):
    process = run_demo(tmp_path, "--model", "gpt-9")

    assert process.returncode == 1
    assert "qwen2.5-omni-world" in process.stderr


def test_the_demo_names_a_file_that_is_not_there(tmp_path: Path):
    process = run_demo(tmp_path, "--image", "no-such-file.jpg")

    assert process.returncode == 1
    assert "no-such-file.jpg" in process.stderr
    assert "Traceback" not in process.stderr
