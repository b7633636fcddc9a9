#!/usr/bin/env bash
# rapidocr 3.10.0 (PP-OCRv6 of its wheel, onnxruntime 1.32.0): one reader, which several callers of a service share.
# One would guess: an argument of a call, such as `text_score=0.999`, holds for that call; those of the constructor are defaults.
# What happens: the argument changes the reader. Later calls without it miss the same lines, and after `use_det=False` they
# return another class, whose only text is empty.
# Remedy: pass every argument in every call, and one call at a time, or use a reader for each setting.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check rapidocr==3.10.0 onnxruntime==1.32.0 numpy pillow
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rapidocr import RapidOCR

page = Image.new("RGB", (480, 220), "white")
for row, text in enumerate(("CORNER CAFE", "12 Main Street", "Total 7.20")):
    ImageDraw.Draw(page).text((20, 20 + 70 * row), text, "black", ImageFont.load_default(28))
pixels = np.asarray(page)
reader = RapidOCR(params={"Global.log_level": "error"})
first = reader(pixels)
strict = reader(pixels, text_score=0.999)
second = reader(pixels)
print("first call:                ", first.txts, "with scores", [round(score, 4) for score in first.scores])
print("with text_score=0.999:     ", strict.txts)
print("without it, the same page: ", second.txts)
reader(pixels, use_det=False)
third = reader(pixels)
print("after use_det=False:       ", type(third).__name__, third.txts)
stays = len(first.txts) == 3 and second.txts == strict.txts and len(strict.txts or ()) < 3
sys.exit(0 if stays and type(third) is not type(first) else 1)
PYTHON
