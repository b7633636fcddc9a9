"""``omnibus profile``: errors in one line before it starts anything, and measurements in a table."""

import json
from pathlib import Path

import pytest

from omnibus.cli import main
from omnibus.profiling.measurements import PartialProfile
from omnibus_models import tiny
from tests.unit.profiling.subjects import declare_model

APP = """
from omnibus.task import Encode, Think

VISION, THINKER = Encode(model="qwen2.5-vl-tiny", component="vision"), Think(model="{other}", component="thinker")


async def serve(request: str) -> str:
    return request
"""
WORKLOAD = {"requests": [{"body": {"messages": [{"role": "user", "content": "hello"}]}}]}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with declarations of the model ``m`` and a workload."""
    (tmp_path / "models.json").write_text(declare_model("qwen2_5_vl"))
    (tmp_path / "w.json").write_text(json.dumps(WORKLOAD))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def read_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that fails and return its error."""
    assert main(["profile", *arguments]) == 1
    return capsys.readouterr().err.strip()


DECLARED = ("--models", "models.json")
WORK = ("--workload", "w.json")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("a model", *WORK), "unknown model or app 'a model': use qwen2.5-vl-tiny"),
        (("./nowhere.py", *WORK), "nowhere.py: file not found"),
        (("qwen-image-tiny", *WORK), "qwen-image-tiny does not chat, and only chats can be measured"),
        (("qwen2", *WORK), "qwen2 is a family: name its tiny model, qwen2-tiny, or one of yours and its file"),
        (("ltx2-tiny", *WORK), "It has text_encoder, vae_encoder, dit, vae, audio_vae"),
        (("x y", *DECLARED, *WORK), "no model 'x y' is declared; there is m"),
        (("m", "--models", "no.json", *WORK), "--models no.json: No such file"),
        (("m", *DECLARED, "--workload", "no.json"), "--workload no.json: cannot read this file"),
        (("m", *DECLARED, "--workload", "models.json"), "must be JSON"),
        (("m", *DECLARED, *WORK, "--option", "X"), "m has no option X; there is E, L, EL"),
        (("m", *DECLARED, *WORK, "--seconds", "0"), "--seconds must be at least 0.05"),
        (("m", *DECLARED, *WORK, "--most", "0"), "--most must be at least 1"),
        (("m", *DECLARED, *WORK, "--most-others", "0"), "--most-others must be at least 1"),
        (("m", *DECLARED, *WORK, "--batch", "1,many"), "--batch must be whole numbers above 0, separated by commas"),
        (("m", *DECLARED, *WORK, "--tp", "0"), "--tp must be whole numbers above 0"),
        (("m", *DECLARED, *WORK, "--engine-profile", "no.json"), "--engine-profile no.json: file not found"),
        (("m", *DECLARED, *WORK, "--put"), "no running Omnibus found"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_said_in_a_line(here: Path, capsys: pytest.CaptureFixture[str], arguments, fault: str):
    err = read_error(capsys, *arguments)

    assert err.startswith("omnibus: ")
    assert fault in err
    assert len(err.splitlines()) == 1
    assert sorted(path.name for path in here.iterdir()) == ["models.json", "w.json"]


def test_any_model_that_is_built_here_can_be_named(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("OMNIBUS_CACHE", str(here.parent))
    tiny.build("qwen2", here.parent / "tiny" / "qwen2")
    path = here / "speech.json"
    path.write_text(json.dumps({"requests": [{"body": {**WORKLOAD["requests"][0]["body"], "modalities": ["audio"]}}]}))

    assert "qwen2-tiny has no audio output" in read_error(capsys, "qwen2-tiny", "--workload", "speech.json")


def test_an_app_that_uses_several_models_needs_one_named(here: Path, capsys: pytest.CaptureFixture[str]):
    (here / "two.py").write_text(APP.format(other="qwen2.5-omni-tiny"))

    assert "two.py uses qwen2.5-vl-tiny, qwen2.5-omni-tiny: choose one with --model" in read_error(
        capsys, "two.py", *WORK
    )
    assert "two.py does not use m" in read_error(capsys, "two.py", *WORK, "--model", "m")


def test_an_app_whose_models_are_not_known_is_said_so(here: Path, capsys: pytest.CaptureFixture[str]):
    (here / "own.py").write_text(APP.format(other="big").replace("qwen2.5-vl-tiny", "big"))

    assert "own.py uses no model that is known here" in read_error(capsys, "own.py", *WORK)


def test_a_run_that_was_interrupted_is_not_overwritten(here: Path, capsys: pytest.CaptureFixture[str]):
    PartialProfile(Path("m.profile.json"), {}).path.write_text("{}")

    assert "continue with --resume" in read_error(capsys, "m", *DECLARED, *WORK)
