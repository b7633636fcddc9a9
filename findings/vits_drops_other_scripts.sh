#!/usr/bin/env bash
# transformers 5.19.0 (torch 2.13.0, CPU), the tokenizer of VITS and MMS-TTS with `is_uroman`, as 'facebook/mms-tts-rus' has.
# One would guess: without the library uroman, which turns other scripts into Latin letters, a text cannot be read: an error.
# What happens: the tokenizer logs a line, and drops every character of the other script. The rest is spoken, so a service
# answers 200 with speech of which words are missing; a text in that script alone becomes an empty prompt.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.19.0 numpy
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import json
import sys
from pathlib import Path

from transformers import VitsTokenizer

vocabulary = Path(sys.argv[1], "vocab.json")
vocabulary.write_text(json.dumps({character: place for place, character in enumerate("_abcdefghijklmnopqrstuvwxyz '")}))
tokenizer = VitsTokenizer(
    str(vocabulary), language="rus", phonemize=False, is_uroman=True, add_blank=False, pad_token="_", unk_token="_"
)
mixed, latin, alone = (tokenizer(text).input_ids for text in ("привет ok", "ok", "привет"))
print(f"'привет ok' is read as {tokenizer.decode(mixed)!r}, 'привет' as {tokenizer.decode(alone)!r}")
sys.exit(0 if mixed == latin and not alone else "the behaviour has changed")
PYTHON
