"""Trials that are repeated: they ignore what is stored, replace it, and name their differences."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from omnibus.cli import main
from omnibus.cli.format.models import trial_lines
from omnibus_llm import weights_trial
from omnibus_llm.engine import admission
from omnibus_llm.engine.admission import Mode, TrialVerdict
from omnibus_llm.repeated_trial import compare_weights, repeat_trial
from omnibus_models import tiny
from omnibus_models.families import load_family
from tests.gguf_files import write_gguf, write_llama

MASKED = "text: several at a time, prompts in shares, masks of the engine"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMNIBUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "admission"


def test_a_trial_is_repeated_whatever_is_stored_and_replaces_it(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(write_llama(tmp_path / "llama"), tmp_path / "llama.gguf")
    repeat_trial(path)
    [stored] = cache.iterdir()
    verdict = stored.read_bytes()
    stored.write_text(json.dumps({"mode": None, "reasons": {"any": "it was refused"}}))

    report = repeat_trial(path)

    assert (report.family, report.admitted) == ("causal_lm", True)
    assert report.outcome == "served: several at a time, prompts in shares, masks of the engine"
    assert [each.subject for each in report.comparisons] == ["text: several at a time, prompts in shares", MASKED]
    for each in report.comparisons:
        assert each.largest is not None
        assert each.bound is not None
        assert 0 < each.largest < each.bound
        assert not each.fault
    assert [*cache.iterdir()] == [stored]
    assert stored.read_bytes() == verdict


def test_an_executor_reads_the_verdict_of_a_repeated_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = tiny.build("causal_lm", tmp_path / "it")
    report = repeat_trial(checkpoint)
    thinker: Any = load_family("causal_lm").load("thinker", checkpoint)
    monkeypatch.setattr(admission, "try_class", lambda *_: pytest.fail("it was tried again"))

    verdict = admission.find_verdict(type(thinker.module), thinker.backbone.config)

    assert verdict == TrialVerdict(Mode(True, True))
    assert report.outcome == "served: several at a time, prompts in shares"
    [whole, masked] = report.comparisons
    assert (whole.fault, masked.subject) == ("", MASKED)
    assert masked.fault.startswith("logits differ by ")  # its layers have windows, which the engine's masks have not


def test_a_class_that_differs_is_refused_with_every_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = tiny.build("causal_lm", tmp_path / "it")
    monkeypatch.setattr(admission, "TOLERANCE", 1e-9)

    report = repeat_trial(checkpoint)

    assert not report.admitted
    assert "does not give its own logits in this engine" in report.outcome
    assert len(report.comparisons) == len(admission.MODES)
    lines = [*trial_lines("trial", report)]
    assert lines[0].split("  ")[0] == "TRIAL"
    for each, line in zip(report.comparisons, lines[1:], strict=False):
        assert each.subject in line
        assert f"{each.largest:.2g}" in line
        assert each.fault in line
    assert lines[-1] == report.outcome


@pytest.mark.parametrize(
    ("family", "subject", "outcome"),
    [
        ("speech_to_text", "audio: several windows at a time", "served: several windows at a time"),
        ("text_to_speech", "speech: the model and its vocoder apart", "served: the model and its vocoder, together or"),
    ],
)
def test_speech_has_trials_too(tmp_path: Path, family: str, subject: str, outcome: str) -> None:
    report = repeat_trial(tiny.build(family, tmp_path / "it"))

    assert [each.subject for each in report.comparisons] == [subject]
    assert report.outcome.startswith(outcome)


@pytest.mark.parametrize(
    ("family", "subjects"),
    [
        (
            "multimodal_lm",
            ["image: several at a time, prompts in shares", "video: several at a time, prompts in shares"],
        ),
        ("modular_image", ["text: components apart", "an image: components apart"]),
    ],
)
def test_models_of_several_components_have_a_comparison_of_each_input(
    tmp_path: Path, family: str, subjects: list[str]
) -> None:
    report = repeat_trial(tiny.build(family, tmp_path / "it"))

    assert report.admitted
    assert {*subjects} <= {each.subject for each in report.comparisons if not each.fault}


def test_a_family_with_code_of_its_own_has_no_trial(tmp_path: Path) -> None:
    report = repeat_trial(tiny.build("qwen3", tmp_path / "it"))

    assert (report.admitted, report.comparisons) == (True, [])
    assert report.outcome.startswith("no trial: the family has code of its own")


def test_a_check_prints_the_trial_of_a_gguf_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_gguf(write_llama(tmp_path / "llama"), tmp_path / "llama.gguf")

    assert main(["models", "check", str(path), "--deep"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "served: several at a time, prompts in shares, masks of the engine"
    [row] = [re.split(r"  +", line) for line in lines if line.startswith(MASKED)]
    assert float(row[1]) < float(row[2])
    assert row[3] == "equal"


@pytest.mark.parametrize(
    ("family", "subjects"),
    [
        ("causal_lm", ["text"]),
        ("multimodal_lm", [f"{kind}: {MASKED.partition(': ')[2]}" for kind in ("image", "video")]),
    ],
)
def test_weights_are_compared_as_they_are_served(tmp_path: Path, family: str, subjects: list[str]) -> None:
    report = compare_weights(tiny.build(family, tmp_path / "it"))

    assert (report.family, report.admitted) == (family, True)
    assert [each.subject for each in report.comparisons] == subjects
    assert all(0 < (each.largest or 0) < (each.bound or 0) for each in report.comparisons), report


def test_weights_that_are_loaded_otherwise_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = tiny.build("causal_lm", tmp_path / "it")
    load_whole = weights_trial._load_whole

    def load_changed(cls: Any, path: Path) -> Any:
        module = load_whole(cls, path)
        module.get_output_embeddings().weight.data *= 1.01
        return module

    monkeypatch.setattr(weights_trial, "_load_whole", load_changed)
    report = compare_weights(checkpoint)

    assert not report.admitted
    assert report.outcome == "the weights do not give the logits of the library"
    assert "logits differ by" in report.comparisons[0].fault


def test_other_families_are_not_compared(tmp_path: Path) -> None:
    report = compare_weights(tiny.build("qwen_image", tmp_path / "it"))

    assert report.admitted
    assert report.outcome == "not compared: only directories of automatic language models are"
