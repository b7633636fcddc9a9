"""Small random checkpoints of text-to-speech models, each with tokenizer, voices and vocoder."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omnibus_models import torchvision_cpu
from omnibus_models.families._speech_classes import CLASSES
from omnibus_models.miniature import build_speech_copy, shrink_speech
from omnibus_models.tiny import _wordpiece

torchvision_cpu.install_operators()

import transformers  # noqa: E402
from transformers.models.bark import generation_configuration_bark as bark  # noqa: E402

VOICES = ("anna", "bert")
_MIMI = {
    "hidden_size": 32, "num_filters": 4, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 32, "codebook_dim": 16, "vector_quantization_hidden_dimension": 16,
    "upsample_groups": 32, "codebook_size": 4096,
}  # fmt: skip
_ENCODEC = {"num_filters": 4, "hidden_size": 32, "codebook_dim": 32, "upsampling_ratios": [8, 5, 4, 2]}
_HIFIGAN = {"upsample_initial_channel": 32}
_MUSICGEN = {
    "text_encoder": {"model_type": "t5", "d_model": 64, "d_kv": 16, "num_heads": 4, "d_ff": 64, "num_layers": 2},
    "audio_encoder": {"model_type": "encodec", **_ENCODEC, "sampling_rate": 32_000},
    "decoder": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "ffn_dim": 64},
}
#: Small vocoders, and what the library's own configurations lack.
FIELDS: Mapping[str, Any] = {
    "bark": {
        "semantic_config": {"input_vocab_size": 129_600},
        "coarse_acoustics_config": {"input_vocab_size": 12_096, "output_vocab_size": 12_096},
        "fine_acoustics_config": {"input_vocab_size": 1056, "output_vocab_size": 1056},
        "codec_config": {"model_type": "encodec", **_ENCODEC},
    },
    "csm": {
        "num_codebooks": 4,
        "text_vocab_size": 400,
        "hidden_size": 128,
        "num_attention_heads": 4,
        "head_dim": 32,
        "depth_decoder_config": {"num_codebooks": 4, "backbone_hidden_size": 128, "hidden_size": 64, "head_dim": 16},
        "codec_config": {"model_type": "mimi", "num_quantizers": 4, **_MIMI},
    },
    "fastspeech2_conformer": {"vocab_size": 400},
    "fastspeech2_conformer_with_hifigan": {"vocoder_config": _HIFIGAN, "model_config": {"vocab_size": 400}},
    **dict.fromkeys(("musicgen", "musicgen_melody"), _MUSICGEN),
    "speecht5": {"vocab_size": 400},
    "vits": {"num_speakers": 2, "speaker_embedding_size": 16, "upsample_initial_channel": 64},
}
#: Of vocoders that are other models.
OTHER_FIELDS: Mapping[str, Any] = {
    "DacModel": {"encoder_hidden_size": 8, "decoder_hidden_size": 64, "codebook_size": 4096, "n_codebooks": 9,
                 "downsampling_ratios": [2, 4, 4, 8], "upsampling_ratios": [8, 4, 4, 2], "sampling_rate": 44_100},
    "FastSpeech2ConformerHifiGan": _HIFIGAN,
    "SpeechT5HifiGan": _HIFIGAN,
}  # fmt: skip
_LANGUAGES = {"eng": 5, "deu": 6}


def write_checkpoint(model_type: str, directory: Path) -> Any:
    """Write a checkpoint of ``model_type``; returns its model."""
    row = CLASSES[model_type]
    config = transformers.CONFIG_MAPPING[model_type](**copy.deepcopy(FIELDS.get(model_type, {})))
    model = build_speech_copy(getattr(transformers, row.cls), shrink_speech(config))
    if model.can_generate():
        model.generation_config = make_generation_config(model_type)
    model.save_pretrained(directory)
    if model_type == "bark":
        _write_bark_config(directory)
    if row.other:
        cls = getattr(transformers, row.other)
        build_speech_copy(cls, cls.config_class(**OTHER_FIELDS[row.other])).save_pretrained(directory / "vocoder")
    _write_processor(model_type, directory)
    if model_type == "speecht5":
        _write_voices(directory, model.config.speaker_embedding_dim)
    return model


def make_generation_config(model_type: str) -> Any:
    """Return what a checkpoint of ``model_type`` usually says; its speech is short."""
    if model_type.startswith("seamless"):
        names = ("text_decoder_lang_to_code_id", "t2u_lang_code_to_id", "vocoder_lang_code_to_id")
        made = transformers.GenerationConfig(
            pad_token_id=0, eos_token_id=2, decoder_start_token_id=3, max_new_tokens=16
        )
        made.id_to_text, made.char_to_id = {}, {letter: at for at, letter in enumerate("None", 4)}
        for name in names:
            setattr(made, name, _LANGUAGES if name != names[2] else {"eng": 0, "deu": 1})
        return made
    options: dict[str, Any] = {"pad_token_id": 0}
    if model_type == "dia":
        options = {"bos_token_id": 1026, "decoder_start_token_id": 1026, "eos_token_id": 1024, "pad_token_id": 1025}
    elif model_type.startswith("musicgen"):
        options = {"pad_token_id": 2048, "decoder_start_token_id": 2048, "guidance_scale": 3.0}
    return transformers.GenerationConfig(max_new_tokens=30, do_sample=True, **options)


def _write_bark_config(directory: Path) -> None:
    parts = {
        "semantic_config": bark.BarkSemanticGenerationConfig(max_new_tokens=9),
        "coarse_acoustics_config": bark.BarkCoarseGenerationConfig(),
        "fine_acoustics_config": bark.BarkFineGenerationConfig(),
    }
    content = {name: part.to_dict() for name, part in parts.items()}
    (directory / "generation_config.json").write_text(
        json.dumps({"model_type": "bark", "codebook_size": 1024, **content})
    )


def _write_processor(model_type: str, directory: Path) -> None:
    if model_type == "vits":
        letters = directory / "letters.json"
        letters.write_text('{"_": 0, ' + ", ".join(f'"{chr(97 + at)}": {at + 1}' for at in range(26)) + ', " ": 27}')
        transformers.VitsTokenizer(letters, phonemize=False, **{"pad_token": "_"}).save_pretrained(directory)
        letters.unlink()
    elif model_type == "dia":
        codec = transformers.DacModel.from_pretrained(directory / "vocoder")
        transformers.DiaProcessor(
            transformers.DiaFeatureExtractor(), transformers.DiaTokenizer(), audio_tokenizer=codec
        ).save_pretrained(directory)
    else:
        _wordpiece.train_tokenizer().save_pretrained(directory)


def _write_voices(directory: Path, width: int) -> None:
    (directory / "speaker_embeddings").mkdir()
    for seed, name in enumerate(VOICES):
        vector = torch.randn(width, generator=torch.Generator().manual_seed(seed))
        np.save(directory / "speaker_embeddings" / f"{name}.npy", vector.numpy())
