"""``python convert_gguf.py FILE DIRECTORY``: write the model in a GGUF file as a checkpoint in float32."""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from omnibus_models import torchvision_cpu

# The library imports torchvision with its models if it is installed.
torchvision_cpu.install_operators()


def main() -> None:
    file = Path(sys.argv[1])
    model: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # The library refuses to save what it has just dequantised while these are there.
    del model.hf_quantizer
    del model.config.quantization_config
    model.save_pretrained(sys.argv[2])
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(sys.argv[2])


if __name__ == "__main__":
    main()
