#!/usr/bin/env bash
# transformers 5.19.0 (Qwen2_5OmniForConditionalGeneration.generate), torch 2.13.0, a tiny model with random weights.
# One would guess: the audio of a spoken answer says all of its text, also where thinker_max_new_tokens ends the text.
# What happens: a talker gets one row of each token, and the row of a token is made by the forward pass that reads it.
# The last token of an answer that is cut is never read, so n tokens of text give n - 1 rows: the last word is missing
# from the audio. Of an answer of one token there is no row at all, and generate raises an error.
# Remedy: ask for one more token, and drop it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.19.0 torch==2.13.0 numpy
TRANSFORMERS_VERBOSITY=error "$folder/venv/bin/python" - <<'PYTHON'
import torch
from transformers import Qwen2_5OmniConfig, Qwen2_5OmniForConditionalGeneration

torch.manual_seed(0)
rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
words = {"vocab_size": 100, "max_position_embeddings": 256, "rope_parameters": rope, "num_hidden_layers": 2}
media = {
    "image_token_index": 90, "video_token_index": 91, "audio_token_index": 92, "vision_start_token_id": 93,
    "vision_end_token_id": 94, "audio_start_token_id": 95, "audio_end_token_id": 96,
}
config = Qwen2_5OmniConfig(
    thinker_config={
        "text_config": {**words, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
                        "num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": 99, "pad_token_id": 98},
        "audio_config": {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "d_model": 32,
                         "output_dim": 64},
        "vision_config": {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64,
                          "fullatt_block_indexes": [0]},
        "user_token_id": 89, **media,
    },
    talker_config={
        **words, "vocab_size": 72, "embedding_size": 64, "hidden_size": 48, "intermediate_size": 96,
        "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16, "pad_token_id": 64,
        "tts_text_start_token_id": 86, "tts_text_end_token_id": 87, "tts_text_pad_token_id": 88,
        "tts_codec_pad_token_id": 64, "tts_codec_start_token_id": 65, "tts_codec_end_token_id": 66,
        "tts_codec_mask_token_id": 67, **media,
    },
    token2wav_config={
        "dit_config": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16, "emb_dim": 16,
                       "num_embeds": 72, "mel_dim": 8, "look_ahead_layers": [1], "look_backward_layers": [0],
                       "enc_emb_dim": 8, "enc_dim": 8, "enc_channels": [16, 16, 16, 16, 48],
                       "enc_attention_channels": 8, "enc_se_channels": 8},
        "bigvgan_config": {"mel_dim": 8, "upsample_initial_channel": 64, "resblock_kernel_sizes": [3],
                           "resblock_dilation_sizes": [[1, 3, 5]]},
    },
)
model = Qwen2_5OmniForConditionalGeneration(config).eval()
model.speaker_map = {"Chelsie": {"bos_token": 86, "cond": torch.zeros(1, 8), "ref_mel": torch.zeros(1, 20, 8)}}
rows = []
talk = model.talker.generate


def count_rows(*args, **options):
    # The first row is the last of the prompt's; behind the others are one that ends the text and one that pads it.
    rows.append(1 + options["thinker_reply_part"].shape[1] - 2)
    return talk(*args, **options)


model.talker.generate = count_rows
prompt = torch.tensor([[1, 2, 3, 4]])
found = {}
for most in (4, 2, 1):
    try:
        text, _ = model.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), speaker="Chelsie", thinker_max_new_tokens=most,
            thinker_eos_token_id=-1, talker_max_new_tokens=48,
        )
        found[most] = (text.shape[1] - prompt.shape[1], rows.pop())
    except (RuntimeError, ValueError) as error:
        found[most] = type(error).__name__
        print(f"thinker_max_new_tokens={most}: {type(error).__name__}: {error}")
        continue
    print(f"thinker_max_new_tokens={most}: {found[most][0]} tokens of text, rows of {found[most][1]} for the talker")
assert found[4] == (4, 3) and found[2] == (2, 1) and isinstance(found[1], str), found
PYTHON
