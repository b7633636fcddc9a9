#!/usr/bin/env bash
# rapidocr 3.10.0 (PP-OCRv6 of its wheel, onnxruntime 1.32.0): the order of the lines of a page.
# One would guess: lines come in reading order. A page upside down, which the direction classifier turns, reads as the upright
# page; a price at the right of its item follows it.
# What happens: each line is turned, but not their order: the last line of the upside-down page is read first, with a score of
# nearly 1. A price that is printed 12 pixels higher than its item, less than half a line, comes before it.
# Remedy: compare the directions of most lines, and turn the page; order lines by rows whose middles are near.
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

read_page = RapidOCR(params={"Global.log_level": "error"})
FONT = ImageFont.load_default(28)


def draw_page(texts):
    page = Image.new("RGB", (640, 220), "white")
    for place, text in texts:
        ImageDraw.Draw(page).text(place, text, "black", FONT)
    return page


def read(page):
    result = read_page(np.asarray(page)[..., ::-1].copy())
    return list(result.txts), float(min(result.scores))


page = draw_page([((20, 20), "First line"), ((20, 90), "Second line"), ((20, 160), "Third line")])
upright, _ = read(page)
turned, score = read(page.rotate(180))
receipt, _ = read(draw_page([((20, 32), "Coffee"), ((480, 20), "5.00"), ((20, 112), "Cake"), ((480, 100), "2.20")]))
print("upright:    ", upright)
print("upside down:", turned, f"with scores of at least {score:.2f}")
print("receipt:    ", receipt)
expected = turned == upright[::-1] and score > 0.9 and receipt == ["5.00", "Coffee", "2.20", "Cake"]
sys.exit(0 if expected and upright == ["First line", "Second line", "Third line"] else 1)
PYTHON
