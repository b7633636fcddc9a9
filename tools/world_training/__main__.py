"""``python -m tools.world_training DIR``: make both checkpoints, reusing parts in ``DIR``."""

import argparse
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from omnibus_models.world import checkpoint_io
from tools.world_training import loop, omni, talker, thinker, vae, vocoder
from tools.world_training import painter as painting
from tools.world_training import painter_model as painter

_THREADS = 1  # sums are rounded by how they are shared out, so another number makes other weights


class Part(NamedTuple):
    """Part of a model that is trained separately; ``after`` is trained before it."""

    name: str
    module: nn.Module
    learn: Callable[[], None]
    after: str = ""


SPEAKING, PAINTING = ("thinker", "talker", "bands", "sound"), ("vae", "painter")
_STEPS = {
    "thinker": sum(stage.until for stage in thinker.STAGES),
    "talker": talker.STEPS,
    "bands": vocoder.STEPS,
    "sound": vocoder.SOUND_STEPS,
    "vae": vae.STEPS,
    "painter": painting.STEPS + painting.POLISHING,
}


def steps(parts: Iterable[str]) -> dict[str, int]:
    """Return the number of training steps of each of ``parts``."""
    return {part: _STEPS[part] for part in parts}


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools.world_training", description="Train the small models.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[*SPEAKING, *PAINTING], action="append", help="parts, to train some at once")
    options = parser.parse_args()
    torch.set_num_threads(_THREADS)
    options.directory.mkdir(parents=True, exist_ok=True)
    targets = options.only or [*SPEAKING, *PAINTING]
    if any(name in SPEAKING for name in targets):
        _speaking(options.directory, options.seed, targets)
    if any(name in PAINTING for name in targets):
        _painting(options.directory, options.seed, targets)


def _speaking(directory: Path, seed: int, targets: Container[str]) -> None:
    model = omni.build(seed)
    dit, vocoding = model.token2wav.code2wav_dit_model, model.token2wav.code2wav_bigvgan_model
    parts = [
        Part("thinker", model.thinker, lambda: thinker.learn(model, seed)),
        Part("talker", model.talker, lambda: talker.learn(model, seed), after="thinker"),
        Part("bands", dit, lambda: vocoder.learn_bands(model, seed)),
        Part("sound", vocoding, lambda: vocoder.learn_sound(model, seed)),
    ]
    if _learnt(directory, parts, targets):
        loop.say(f"thinker: {thinker.examined(model, seed + 1)}")
        loop.say(f"talker: {talker.examined(model, seed + 1)}")
        omni.save(model, directory / omni.FAMILY)
        checkpoint_io.write_manifest(directory / omni.FAMILY, {"seed": seed, "steps": steps(SPEAKING)})


def _painting(directory: Path, seed: int, targets: Container[str]) -> None:
    components: dict[str, Any] = painter.build(seed)
    autoencoder = components["vae"]
    pair = nn.ModuleList([components["text_encoder"], components["transformer"]])

    def learn() -> None:
        vae.measure(autoencoder, seed)
        painting.learn(components, seed)

    parts = [
        Part("vae", autoencoder, lambda: vae.learn(autoencoder, seed)),
        Part("painter", pair, learn, after="vae"),
    ]
    if _learnt(directory, parts, targets):
        vae.measure(autoencoder, seed)
        painter.save(components, directory / painter.FAMILY)
        checkpoint_io.write_manifest(directory / painter.FAMILY, {"seed": seed, "steps": steps(PAINTING)})


def _learnt(directory: Path, parts: list[Part], wanted: Container[str]) -> bool:
    """Train the ``targets`` of ``parts`` that ``directory`` lacks.

    Returns True if all have been trained.
    """
    done_names = set()
    for part in parts:
        path = directory / f"{part.name}.pt"
        if part.name in wanted and not path.exists():
            if part.after and part.after not in done_names:
                raise SystemExit(f"{part.name} learns from {part.after}, which is not in {directory}: train that first")
            part.learn()
            torch.save(part.module.state_dict(), path)
        if path.exists():
            part.module.load_state_dict(torch.load(path, weights_only=True))
            done_names.add(part.name)
    return len(done_names) == len(parts)


if __name__ == "__main__":
    main()
