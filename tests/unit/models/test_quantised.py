"""Checkpoints with quantised layers: vLLM's front reads them without a library of their format."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from omnibus.errors import Fatal
from omnibus_models import tiny
from omnibus_models.families import load_family

FORMATS = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
}


@pytest.fixture(scope="module")
def base_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2", tmp_path_factory.mktemp("models") / "qwen2")


@pytest.mark.parametrize("format", FORMATS)
def test_a_reader_is_that_of_the_plain_checkpoint(base_checkpoint: Path, tmp_path: Path, format: str) -> None:
    path = tmp_path / format
    shutil.copytree(base_checkpoint, path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": FORMATS[format]}))
    family = load_family("qwen2")

    quantised_module, plain = family.reader(path).module, family.reader(base_checkpoint).module

    assert {name for name, _ in quantised_module.named_parameters()} == {name for name, _ in plain.named_parameters()}
    for (_, one), (_, other) in zip(quantised_module.named_parameters(), plain.named_parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(Fatal, match="cannot be loaded from"):  # its layers need the library of the format
        family.load("thinker", path)
