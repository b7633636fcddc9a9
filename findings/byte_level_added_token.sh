#!/usr/bin/env bash
# tokenizers 0.23.3 (byte-level BPE, as in the tokenizers of GPT-2, Llama 3 and Qwen).
# One would guess: a token that was added as text decodes to that text.
# What happens: the decoder reads the text of an added token as the alphabet that stands for bytes, so a token "éè" is the
# bytes 0xE9 0xE8 and decodes to U+FFFD twice, and a token "Ġx" loses its first letter to a space; a token with a character
# outside of that alphabet, as "café ☕", decodes to itself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PYTHON'
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE({letter: id for id, letter in enumerate(letters)}, []))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("éè", "Ġx", "café ☕")])
decoded = {}
for text in ("éè", "Ġx", "café ☕", "a éè b"):
    ids = tokenizer.encode(text).ids
    decoded[text] = tokenizer.decode(ids)
    print(repr(text), ids, repr(decoded[text]))
assert decoded == {"éè": "\ufffd\ufffd", "Ġx": " x", "café ☕": "café ☕", "a éè b": "a \ufffd\ufffd b"}, "added tokens are text now"
PYTHON
