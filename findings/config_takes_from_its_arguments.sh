#!/usr/bin/env bash
# transformers 5.19.0: configurations of two models, made from dictionaries.
# One would guess: the dictionaries stay as they are, as for `LlavaConfig`, so that a second call makes an equal configuration.
# What happens: `VisionEncoderDecoderConfig`, `VisionTextDualEncoderConfig` and `MusicgenConfig` remove `model_type` from the
# caller's dictionaries, and the second call with them raises KeyError.
# Remedy: pass copies.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.19.0 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import sys

from transformers import LlavaConfig, MusicgenConfig, VisionEncoderDecoderConfig, VisionTextDualEncoderConfig

CALLS = (
    (LlavaConfig, {"vision_config": "clip_vision_model", "text_config": "llama"}),
    (VisionEncoderDecoderConfig, {"encoder": "vit", "decoder": "gpt2"}),
    (VisionTextDualEncoderConfig, {"vision_config": "vit", "text_config": "bert"}),
    (MusicgenConfig, {"text_encoder": "t5", "audio_encoder": "encodec", "decoder": "musicgen_decoder"}),
)
outcomes = {}
for cls, types in CALLS:
    parts = {name: {"model_type": model_type} for name, model_type in types.items()}
    cls(**parts)
    try:
        cls(**parts)
        outcomes[cls.__name__] = "equal"
    except KeyError as error:
        outcomes[cls.__name__] = f"KeyError: {error}"
    print(f"{cls.__name__:28} after one call {parts}; a second call: {outcomes[cls.__name__]}")
sys.exit(0 if [each == "equal" for each in outcomes.values()] == [True, False, False, False] else 1)
PYTHON
