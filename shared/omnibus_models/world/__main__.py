"""``python -m omnibus_models.world make DIR`` and ``… tell FILE``: something to see and hear, and what files hold."""

import argparse
import sys
import wave
from pathlib import Path

import numpy as np

from omnibus_models.world import audio_oracle, dialogues, image_oracle, scenes, tone_synth


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="omnibus_models.world", description="Things to see and hear.")
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("make", help="write seen.png and heard.wav, print the words for them and others")
    make.add_argument("directory", type=Path)
    make.add_argument("--seed", type=int, help="which scene and sound; without it any")
    tell = commands.add_parser("tell", help="print what files show, play or say, as told without any model")
    tell.add_argument("files", type=Path, nargs="+")
    chosen = parser.parse_args(arguments)
    if chosen.command == "make":
        sys.stdout.write(f"{_made(chosen.directory, chosen.seed)}\n")
        return 0
    for file in chosen.files:
        sys.stdout.write(f"{_told(file)}\n")
    return 0


def _made(directory: Path, seed: int | None) -> str:
    """A scene that no training saw, and tones. Their words, and in a line below those of another such scene to draw."""
    random = np.random.default_rng(seed)
    scene, other = (scenes.unseen()[int(place)] for place in random.choice(len(scenes.unseen()), 2, replace=False))
    tones = dialogues.some_tones(random)
    (directory / "seen.png").write_bytes(scenes.png(scenes.drawn(scene, random)))
    (directory / "heard.wav").write_bytes(tone_synth.wav(tone_synth.played(list(tones), random), tone_synth.HEARD_RATE))
    return f"{dialogues.both(scene, tones).answer}\n{other.caption}"


def _told(file: Path) -> str:
    if file.suffix == ".wav":
        with wave.open(str(file)) as opened:
            rate, data = opened.getframerate(), opened.readframes(opened.getnframes())
        samples = np.frombuffer(data, "<i2") / 32767
        return " ".join(audio_oracle.words(samples, rate) or audio_oracle.tones(samples, rate) or ["nothing"])
    from PIL import Image

    scene = image_oracle.seen(np.asarray(Image.open(file).convert("RGB")))
    return scene.caption if scene else "nothing"


if __name__ == "__main__":
    raise SystemExit(main())
