"""Sampling defaults that a checkpoint's authors recommend."""

import json
from pathlib import Path
from typing import Any

import pytest

from omnibus.checkpoints.generation_config import read_checkpoint_sampling, read_sampling


def write_config(directory: Path, settings: Any) -> Path:
    (directory / "generation_config.json").write_text(settings if isinstance(settings, str) else json.dumps(settings))
    return directory


@pytest.mark.parametrize(
    ("settings", "sampling"),
    [
        (  # like Qwen2.5
            {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
            {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
        ),
        ({"do_sample": True}, {}),
        ({"temperature": 1.0}, {"temperature": 1.0}),
        ({"top_k": 50}, {"top_k": 50}),  # transformers' default, but explicit
        ({"top_k": -1}, {"top_k": 0}),
        ({"max_new_tokens": 2048, "max_length": 20}, {"max_tokens": 2048}),
        ({"min_p": 0.1, "presence_penalty": 1.5}, {"min_p": 0.1, "presence_penalty": 1.5}),
        ({"temperature": None, "top_p": "0.5", "top_k": True}, {}),
        ({"temperature": 7.5, "top_p": 0, "repetition_penalty": -1}, {}),
        ({"eos_token_id": [1, 2], "transformers_version": "5.19.0"}, {}),
        (
            {"talker_temperature": 0.9, "talker_top_k": 50, "talker_max_new_tokens": 4096, "thinker_top_p": 0.9},
            {"top_p": 0.9, "talker_temperature": 0.9, "talker_top_k": 50},
        ),
        ({"talker_do_sample": False}, {"talker_temperature": 0.0}),
        ([], {}),
        ("{", {}),
    ],
)
def test_a_file_says_what_holds_for_requests_that_name_nothing(tmp_path: Path, settings: Any, sampling: Any):
    assert read_sampling(write_config(tmp_path, settings)) == sampling


@pytest.mark.behaviour(
    "vLLM 0.32",
    "samples by temperature 1 from a model whose generation_config.json says do_sample false",
    "chooses the likeliest token for requests that name no temperature, as transformers does",
    source="vllm/config/model.py: get_diff_sampling_param has no do_sample; transformers: GenerationConfig.do_sample",
)
def test_a_model_that_is_not_to_be_sampled_is_greedy(tmp_path: Path):
    assert read_sampling(write_config(tmp_path, {"do_sample": False, "temperature": 0.6}))["temperature"] == 0


def test_a_checkpoint_that_is_not_here_says_nothing(tmp_path: Path):
    assert read_checkpoint_sampling("") == {}
    assert read_checkpoint_sampling("some/model") == {}
    assert read_checkpoint_sampling(str(tmp_path)) == {}
    assert read_checkpoint_sampling(str(write_config(tmp_path, {"top_p": 0.5}))) == {"top_p": 0.5}
