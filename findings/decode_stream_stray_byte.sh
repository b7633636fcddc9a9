#!/usr/bin/env bash
# tokenizers 0.23.3 (byte fallback, as in the tokenizers of Llama 2 and Gemma).
# One would guess: an incremental decoder replaces a stray byte by U+FFFD and goes on with the next token, and the text
# of the characters around the byte stays.
# What happens: `DecodeStream.step` raises at the token behind the stray byte and at every later token, and
# `Tokenizer.decode` replaces each byte of the whole run of byte tokens, valid characters included.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PYTHON'
from tokenizers import Tokenizer, decoders, models
from tokenizers.decoders import DecodeStream

vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁a": 256, "b": 257}
tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
ids = [256, *"你".encode(), 0x80, 257, 256, 257]

whole = tokenizer.decode(ids)
print("decode of all tokens:", repr(whole))
stream, raised = DecodeStream(), 0
for id in ids:
    try:
        print(id, repr(stream.step(tokenizer, id)))
    except Exception as error:
        raised += 1
        print(id, type(error).__name__, error)
assert whole == " a\ufffd\ufffd\ufffd\ufffdb ab", "the character before the stray byte is kept now"
assert raised == 3, "the stream goes on behind the stray byte now"
PYTHON
