#!/usr/bin/env bash
# transformers 5.19.0 (torch 2.13.0, CPU), CLIP and OWL-ViT with small random weights.
# One would guess: the vector of a text is that of its end-of-text token, so a word that was added to the vocabulary, as in
# textual inversion, is a word like others.
# What happens: with `eos_token_id` 2, as in the configurations of OpenAI's checkpoints, the place of the highest id is
# pooled. An added token has a higher id than the end of text, so words after it do not change the vector at all. OWL-ViT
# pools that way whatever the configuration says.
# Remedy: set `text_config.eos_token_id` of CLIP to the tokenizer's.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.19.0 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import torch
from transformers import CLIPConfig, CLIPModel, OwlViTConfig, OwlViTModel

BEGIN, END, ADDED = 97, 98, 99
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def compare_endings(cls, config, eos, word):
    """Return how far apart the vectors of two texts are that differ after ``word``."""
    torch.manual_seed(0)
    text = {**SMALL, "vocab_size": 100, "max_position_embeddings": 16, "bos_token_id": BEGIN, "eos_token_id": eos}
    model = cls(config(text_config=text, vision_config={**SMALL, "image_size": 28, "patch_size": 14})).eval()
    ids = torch.tensor([[BEGIN, 10, word, last, 30, END] for last in (20, 21)])
    with torch.no_grad():
        one, other = model.get_text_features(ids).pooler_output
    return float((one - other).abs().max())


known = {
    (cls.__name__, eos, word): compare_endings(cls, config, eos, word)
    for cls, config in ((CLIPModel, CLIPConfig), (OwlViTModel, OwlViTConfig))
    for eos in (2, END)
    for word in (11, ADDED)
}
for (name, eos, word), apart in known.items():
    print(f"{name:12} eos_token_id {eos:2}: texts that differ after {'an added' if word == ADDED else 'a known'} word differ by {apart:.1e}")
same = {key for key, apart in known.items() if apart == 0}
sys.exit(0 if same == {("CLIPModel", 2, ADDED), ("OwlViTModel", 2, ADDED), ("OwlViTModel", END, ADDED)} else 1)
PYTHON
