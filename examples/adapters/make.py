"""Make a LoRA adapter with random weights for a checkpoint's language model.

The adapter has the format of PEFT.

    python examples/adapters/make.py CHECKPOINT DIRECTORY [SEED]
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

LAYERS = re.compile(r"(?!.*(visual|vision|audio|talker)).*\blayers\.\d+\.(self_attn|mlp)\.(?P<last>\w+)\.weight")


def write_adapter(
    checkpoint: Path,
    directory: Path,
    seed: int = 0,
    *,
    rank: int = 4,
    alpha: int = 8,
    targets: Sequence[str] = ("q_proj", "v_proj", "down_proj"),
    strength: float = 0.3,
) -> Path:
    """Write an adapter of ``targets`` to ``directory``, and return the directory."""
    random, matrices = np.random.default_rng(seed), {}
    for name, (outputs, inputs) in _linear_layers(checkpoint, targets).items():
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        down = random.normal(size=(rank, inputs), scale=inputs**-0.5)
        up = random.normal(size=(outputs, rank), scale=strength)
        matrices[f"{stem}.lora_A.weight"] = down.astype(np.float32)
        matrices[f"{stem}.lora_B.weight"] = up.astype(np.float32)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": [*targets],
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=2))
    save_file(matrices, directory / "adapter_model.safetensors")
    return directory


def _linear_layers(checkpoint: Path, targets: Sequence[str]) -> dict[str, tuple[int, int]]:
    shapes = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, "np") as weights:
            for name in weights.keys():  # noqa: SIM118 - it is no mapping
                layer = LAYERS.fullmatch(name)
                if layer is not None and layer["last"] in targets:
                    outputs, inputs = weights.get_slice(name).get_shape()
                    shapes[name] = (outputs, inputs)
    return shapes


if __name__ == "__main__":
    checkpoint, directory, *seed = sys.argv[1:]
    sys.stdout.write(f"{write_adapter(Path(checkpoint), Path(directory), *map(int, seed))}\n")
