"""Every multimodal model of transformers comes apart as the stored outcomes say."""

import pytest

from tests.auto_families import media_trials, trials

#: One type for each way to encode and to prepare prompts.
TYPICAL = {
    "aya_vision": "image",  # tiles with marks between them
    "gemma3": "image",  # attention in both directions, windows
    "glmasr": "audio (one)",
    "llava_next": "image",  # rows of different counts
    "qwen3_vl": "image, video",  # M-RoPE, rows for single layers
    "qwen2_audio": "whole: audio",
    "granite4_vision": "image",  # rows with the numbers of their layers
    "mllama": "refused",  # cross-attention
}


def test_every_type_has_an_expected_outcome():
    assert trials.read_outcomes(media_trials.KIND).keys() == {*media_trials.list_types()}


@pytest.mark.parametrize("model_type", sorted(TYPICAL))
def test_a_typical_type_comes_apart_as_expected(model_type: str):
    trial = trials.try_apart(model_type, media_trials.try_type)

    assert trial.way == TYPICAL[model_type] == trials.read_outcomes(media_trials.KIND)[model_type], trial.reason


@pytest.mark.nightly
@pytest.mark.parametrize("model_type", sorted({*media_trials.list_types()} - TYPICAL.keys()))
def test_a_type_comes_apart_as_expected(model_type: str):
    trial = trials.try_apart(model_type, media_trials.try_type)

    trials.skip_missing_library(trial)
    assert trial.way == trials.read_outcomes(media_trials.KIND)[model_type], trial.reason
