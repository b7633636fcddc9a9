#!/usr/bin/env bash
# transformers 5.19.0, image processor of LLaVA-OneVision beside that of LLaVA-NeXT.
# One would guess: for one prompt with two images, `images=[one, other]` and `images=[[one, other]]` give the same tiles.
# What happens: LLaVA-OneVision takes a flat list as images of different prompts and cuts each into tiles; nested, each image
# is one tile. The prompt becomes several times longer, without a warning. LLaVA-NeXT gives the same tiles.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.19.0 pillow==13.0.0 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import numpy
from PIL import Image
from transformers import LlavaNextImageProcessorPil, LlavaOnevisionImageProcessorPil

noise = numpy.random.default_rng(0)
pair = [Image.fromarray(noise.integers(0, 255, (*size, 3), numpy.uint8)) for size in ((300, 400), (500, 800))]
tiles = {}
for cls in (LlavaNextImageProcessorPil, LlavaOnevisionImageProcessorPil):
    for kind, images in (("flat", pair), ("nested", [pair])):
        tiles[cls, kind] = [len(image) for image in cls()(images=images)["pixel_values"]]
        print(f"{cls.__name__:32} {kind:6} list of two images: {tiles[cls, kind]} tiles")
same = tiles[LlavaNextImageProcessorPil, "flat"] == tiles[LlavaNextImageProcessorPil, "nested"]
other = tiles[LlavaOnevisionImageProcessorPil, "flat"], tiles[LlavaOnevisionImageProcessorPil, "nested"]
sys.exit(0 if same and min(other[0]) > 1 and other[1] == [1, 1] else 1)
PYTHON
