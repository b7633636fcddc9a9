"""``python -m omnibus_models.world make DIR`` and ``… tell FILE``: sample media, and their recognised contents."""

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
    make.add_argument("--seed", type=int, help="which scene and audio; random by default")
    tell = commands.add_parser("tell", help="print what files show, play or say, as told without any model")
    tell.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    if options.command == "make":
        sys.stdout.write(f"{_make_samples(options.directory, options.seed)}\n")
        return 0
    for file in options.files:
        sys.stdout.write(f"{_describe_file(file)}\n")
    return 0


def _make_samples(directory: Path, seed: int | None) -> str:
    """Write an unseen scene and tones; return their words, and those of another such scene."""
    random = np.random.default_rng(seed)
    scene, other = (
        scenes.held_out_scenes()[int(place)] for place in random.choice(len(scenes.held_out_scenes()), 2, replace=False)
    )
    tones = dialogues.sample_tones(random)
    (directory / "seen.png").write_bytes(scenes.encode_png(scenes.draw_scene(scene, random)))
    (directory / "heard.wav").write_bytes(
        tone_synth.encode_wav(tone_synth.synthesize_tones(list(tones), random), tone_synth.INPUT_RATE_HERTZ)
    )
    return f"{dialogues.scene_and_tones_question(scene, tones).answer}\n{other.caption}"


def _describe_file(file: Path) -> str:
    if file.suffix == ".wav":
        with wave.open(str(file)) as audio:
            rate, data = audio.getframerate(), audio.readframes(audio.getnframes())
        samples = np.frombuffer(data, "<i2") / 32767
        return " ".join(
            audio_oracle.recognize_words(samples, rate) or audio_oracle.recognize_tones(samples, rate) or ["nothing"]
        )
    from PIL import Image

    scene = image_oracle.recognize_scene(np.asarray(Image.open(file).convert("RGB")))
    return scene.caption if scene else "nothing"


if __name__ == "__main__":
    raise SystemExit(main())
