"""LoRA adapters of tiny checkpoints, and the merged checkpoints."""

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from examples.adapters.make import write_adapter

__all__ = ["merge_adapter", "widen_adapter", "write_adapter"]

_WEIGHTS = "model.safetensors"


def merge_adapter(checkpoint: Path, adapter: Path, directory: Path) -> Path:
    """Merge ``adapter`` into ``checkpoint``: W + scale * B @ A in float32."""
    shutil.copytree(checkpoint, directory)
    config = json.loads((adapter / "adapter_config.json").read_text())
    divisor = config["r"] ** 0.5 if config.get("use_rslora") else config["r"]
    weights, matrices = load_file(checkpoint / _WEIGHTS), load_file(adapter / "adapter_model.safetensors")
    for name in matrices:
        if name.endswith(".lora_A.weight"):
            down, up = matrices[name].float(), matrices[name.replace("lora_A", "lora_B")].float()
            target = name.removeprefix("base_model.model.").replace(".lora_A", "")
            weights[target] = weights[target].float() + config["lora_alpha"] / divisor * up @ down
    save_file(weights, directory / _WEIGHTS, metadata={"format": "pt"})
    return directory


def widen_adapter(adapter: Path, directory: Path) -> Path:
    """Copy ``adapter`` for a model with twice as many layer inputs."""
    shutil.copytree(adapter, directory)
    matrices = load_file(adapter / "adapter_model.safetensors")
    wide = {name: matrix.repeat(1, 2) if "lora_A" in name else matrix for name, matrix in matrices.items()}
    save_file(wide, directory / "adapter_model.safetensors")
    return directory
