"""``python -m omnibus_models.world.training DIR``: make both checkpoints; what is in ``DIR`` is not made again."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from omnibus_models.world import omni, painter
from omnibus_models.world.training import loop, talker, thinker, vae, vocoder
from omnibus_models.world.training import painter as painting

_THREADS = 1  # sums are rounded by how they are shared out, so another number makes other weights


def main() -> None:
    parser = argparse.ArgumentParser(prog="omnibus_models.world.training", description="Train the small models.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=["qwen2_5_omni", "qwen_image"])
    chosen = parser.parse_args()
    torch.set_num_threads(_THREADS)
    chosen.directory.mkdir(parents=True, exist_ok=True)
    if chosen.only != "qwen_image":
        _speaking(chosen.directory, chosen.seed)
    if chosen.only != "qwen2_5_omni":
        _painting(chosen.directory, chosen.seed)


def _speaking(directory: Path, seed: int) -> None:
    model = omni.build(seed)
    _once(directory / "thinker.pt", model.thinker, lambda: thinker.learn(model, seed))
    loop.say(f"thinker: {thinker.examined(model, seed + 1)}")
    _once(directory / "talker.pt", model.talker, lambda: talker.learn(model, seed))
    loop.say(f"talker: {talker.examined(model, seed + 1)}")
    dit, vocoding = model.token2wav.code2wav_dit_model, model.token2wav.code2wav_bigvgan_model
    _once(directory / "bands.pt", dit, lambda: vocoder.learn_bands(model, seed))
    _once(directory / "sound.pt", vocoding, lambda: vocoder.learn_sound(model, seed))
    omni.save(model, directory / omni.FAMILY)


def _painting(directory: Path, seed: int) -> None:
    components: dict[str, Any] = painter.build(seed)
    autoencoder = components["vae"]
    _once(directory / "vae.pt", autoencoder, lambda: vae.learn(autoencoder, seed))
    vae.measure(autoencoder, seed)
    both = nn.ModuleList([components["text_encoder"], components["transformer"]])
    _once(directory / "painter.pt", both, lambda: painting.learn(components, seed))
    painter.save(components, directory / painter.FAMILY)


def _once(path: Path, module: nn.Module, learn: Callable[[], None]) -> None:
    """Let ``module`` learn, unless what it learnt is in ``path``."""
    if not path.exists():
        learn()
        torch.save(module.state_dict(), path)
    module.load_state_dict(torch.load(path, weights_only=True))


if __name__ == "__main__":
    main()
