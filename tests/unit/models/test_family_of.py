"""The family of a checkpoint, from its configuration."""

import json
from pathlib import Path
from typing import Any

import pytest

from omnibus.errors import NotFound
from omnibus_models.families import family_of


def write_config(directory: Path, **fields: Any) -> Path:
    (directory / "config.json").write_text(json.dumps(fields))
    return directory


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [("llama", "LlamaForCausalLM"), ("gpt2", "GPT2LMHeadModel"), ("lfm2_moe", "Lfm2MoeForCausalLM"), ("mistral", "")],
)
def test_a_language_model_without_code_is_of_the_general_family(tmp_path: Path, model_type: str, architecture: str):
    more = {"architectures": [architecture]} if architecture else {}

    assert family_of(write_config(tmp_path, model_type=model_type, **more)).name == "causal_lm"


@pytest.mark.parametrize(
    ("model_type", "more"),
    [
        ("aya_vision", {}),
        ("glmasr", {}),
        ("gemma4", {"architectures": ["Gemma4ForConditionalGeneration"]}),  # listed with the language models as well
        ("qwen3_5", {"architectures": ["Qwen3_5ForConditionalGeneration"]}),
    ],
)
def test_a_model_with_encoders_is_of_the_multimodal_family(tmp_path: Path, model_type: str, more: dict[str, Any]):
    assert family_of(write_config(tmp_path, model_type=model_type, **more)).name == "multimodal_lm"


def test_a_family_of_its_own_takes_precedence(tmp_path: Path):
    assert family_of(write_config(tmp_path, model_type="qwen3", architectures=["Qwen3ForCausalLM"])).name == "qwen3"


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [
        ("gemma4", "Gemma4ForTokenClassification"),
        ("llama", "LlamaForTokenClassification"),
        ("unknown_type", "UnknownForCausalLM"),
    ],
)
def test_models_of_another_kind_are_not(tmp_path: Path, model_type: str, architecture: str):
    checkpoint = write_config(tmp_path, model_type=model_type, architectures=[architecture])

    with pytest.raises(NotFound, match=f"unknown model family '{model_type}'"):
        family_of(checkpoint)
