#!/usr/bin/env bash
# transformers 5.19.0, processor of Gemma 3 beside that of LLaVA with a tokenizer of seven words.
# One would guess: `processor.image_token_id` is the id that stands for rows of images in `input_ids`, the only one in
# `processor.image_token_ids`.
# What happens: that of Gemma 3 is the id of the mark before an image, so one place is found per image, not one per row.
# Remedy: `processor.image_token_ids` or `processor.tokenizer.image_token_id`.
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
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPImageProcessorPil, Gemma3ImageProcessorPil, Gemma3Processor, LlavaProcessor, PreTrainedTokenizerFast,
)

MARKS = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
VOCABULARY = ["<pad>", "<unk>", *MARKS.values(), "a", "fox"]
words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", extra_special_tokens=MARKS
)
size = {"height": 32, "width": 32}
PROCESSORS = {
    "Gemma 3": Gemma3Processor(Gemma3ImageProcessorPil(size=size), tokenizer, image_seq_length=16),
    "LLaVA": LlavaProcessor(
        CLIPImageProcessorPil(size=size, crop_size=size), tokenizer, patch_size=8,
        vision_feature_select_strategy="full", image_token=MARKS["image_token"],
    ),
}
image = Image.fromarray(numpy.zeros((32, 32, 3), dtype=numpy.uint8))
seen = {}
for name, processor in PROCESSORS.items():
    ids = processor(text=f"{processor.image_token} a fox", images=[image])["input_ids"][0]
    rows = ids.count(tokenizer.image_token_id)
    seen[name] = (rows, ids.count(processor.image_token_id), sum(each in processor.image_token_ids for each in ids))
    print(f"{name}: {rows} rows of an image; ids equal to processor.image_token_id {processor.image_token_id}: "
          f"{seen[name][1]}; ids in processor.image_token_ids {processor.image_token_ids}: {seen[name][2]}")
sys.exit(0 if seen == {"Gemma 3": (16, 1, 16), "LLaVA": (16, 16, 16)} else 1)
PYTHON
