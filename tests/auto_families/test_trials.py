"""Every language model of transformers runs as the stored outcomes say."""

import pytest
import transformers

from tests.auto_families import trials

#: One type for each way to run, kind of mask, cache and head.
TYPICAL = {
    "llama": "batched",
    "gemma2": "batched",  # windows, scaled embeddings, soft caps
    "gemma4_text": "batched",  # embeddings for each layer, keys of other layers
    "gpt_oss": "batched",  # masks that are added to scores
    "llama4_text": "batched",  # chunks
    "bloom": "batched",  # positions by the distance of keys
    "deepseek_v3": "batched",  # values narrower than keys
    "lfm2_moe": "batched",  # states of convolutions
    "qwen3_5": "batched",  # linear attention
    "cohere2": "batched",  # scaled logits
    "mamba": "batched, prompts whole",
    "opt": "batched",
    "axk2": "one at a time",  # keys of an indexer
    "bart": "one at a time",
    "bert": "one at a time, prompts whole",
    "xlnet": "refused",
}


def test_every_type_has_an_expected_outcome():
    assert trials.read_outcomes().keys() == {*trials.list_types()}


def test_typical_types_are_those_of_the_outcomes():
    outcomes = trials.read_outcomes()

    assert {model_type: outcomes[model_type] for model_type in TYPICAL} == TYPICAL


@pytest.mark.parametrize("version", ["5.19.1", "99.0"])
def test_a_version_without_outcomes_is_compared_with_an_older_one(version: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transformers, "__version__", version)

    assert trials.compare_outcomes({"llama": "refused", "mamba": "batched, prompts whole", "newcomer": "batched"}) == [
        "llama: batched before, refused now",
        "newcomer: unknown before, batched now",
    ]


@pytest.mark.parametrize("model_type", sorted(TYPICAL))
def test_a_typical_type_runs_as_expected(model_type: str):
    trial = trials.try_apart(model_type)

    assert trial.way == TYPICAL[model_type], trial.reason


@pytest.mark.nightly
@pytest.mark.parametrize("model_type", sorted({*trials.list_types()} - TYPICAL.keys()))
def test_a_type_runs_as_expected(model_type: str):
    trial = trials.try_apart(model_type)

    trials.skip_missing_library(trial)
    assert trial.way == trials.read_outcomes()[model_type], trial.reason
