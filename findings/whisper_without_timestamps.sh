#!/usr/bin/env bash
# transformers 5.19.0 (torch 2.13.0, CPU), Whisper of windows of two seconds with small random weights.
# One would guess: `return_timestamps=False` gives no timestamps, and audio of one window takes one call, as documented.
# What happens: timestamps are not suppressed. A pair of them splits the text as it does with timestamps: what follows
# the last pair is dropped, the window is encoded and written again from that time, and the answer may exceed
# `max_new_tokens`. Of eight audios here, three take two calls.
# Remedy: add timestamps to `suppress_tokens`; `force_unique_generate_call=True` keeps one call, but not the timestamps.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.19.0 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import logging
import sys

import torch
from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

logging.disable(logging.WARNING)
torch.set_num_threads(1)
END, START, ENGLISH, TRANSLATE, TRANSCRIBE, PREVIOUS, NO_SPEECH, NO_TIMESTAMPS = range(400, 408)  # 0 to 399 are text
STAMPS = range(408, 408 + 101)  # of two seconds, in steps of 0.02 s
config = WhisperConfig(
    vocab_size=STAMPS.stop, num_mel_bins=16, max_source_positions=100, max_target_positions=64, d_model=32,
    encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=64, decoder_layers=2, decoder_attention_heads=2,
    decoder_ffn_dim=64, decoder_start_token_id=START, bos_token_id=END, eos_token_id=END, pad_token_id=END,
)
model = WhisperForConditionalGeneration(config).eval()
MARKS = list(range(START, STAMPS.start))
model.generation_config = GenerationConfig(
    decoder_start_token_id=START, bos_token_id=END, eos_token_id=END, pad_token_id=END, is_multilingual=True,
    lang_to_id={"<|en|>": ENGLISH}, task_to_id={"translate": TRANSLATE, "transcribe": TRANSCRIBE},
    no_timestamps_token_id=NO_TIMESTAMPS, prev_sot_token_id=PREVIOUS, max_initial_timestamp_index=50,
    suppress_tokens=MARKS, begin_suppress_tokens=[END], max_length=None,
)
generator = torch.Generator().manual_seed(0)
with torch.no_grad():
    for weights in model.parameters():
        if weights.dim() >= 2:
            weights.copy_(torch.randn(weights.shape, generator=generator) * 2 * weights[0].numel() ** -0.5)
passes = []
model.get_encoder().register_forward_hook(lambda *_: passes.append(1))


def write(audio, **settings):
    """Return the tokens of a window of two seconds, and how often it was encoded."""
    passes.clear()
    tokens = model.generate(
        audio, language="en", task="transcribe", return_timestamps=False, max_new_tokens=30, do_sample=False, **settings
    )
    return tokens[0].tolist(), len(passes)


counts = {"timestamps": 0, "more than one call": 0, "text dropped": 0, "timestamps although suppressed": 0}
for number in range(8):
    audio = torch.randn(1, 16, 200, generator=generator)
    tokens, calls = write(audio)
    first = write(audio, force_unique_generate_call=True)[0][4:]  # four tokens begin the prompt
    bare, bare_calls = write(audio, suppress_tokens=MARKS + list(STAMPS))
    stamps = sum(token in STAMPS for token in tokens)
    kept = next((place for place, pair in enumerate(zip(first, tokens)) if len(set(pair)) > 1), len(first))
    print(f"audio {number}: {len(tokens)} tokens with {stamps} timestamps of {calls} calls, {kept} of the {len(first)} of "
          f"the first call kept; with timestamps in suppress_tokens: {len(bare)} tokens of {bare_calls} call")
    counts["timestamps"] += stamps > 0
    counts["more than one call"] += calls > 1
    counts["text dropped"] += kept < len(first)
    counts["timestamps although suppressed"] += any(token in STAMPS for token in bare) or bare_calls > 1
print("return_timestamps=False, max_new_tokens=30, 8 audios:", counts)
sys.exit(0 if all(list(counts.values())[:3]) and not counts["timestamps although suppressed"] else 1)
PYTHON
