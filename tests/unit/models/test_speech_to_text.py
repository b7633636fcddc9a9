"""Recognizers of any class, loaded in two halves, write the tokens of the whole model of the library."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnibus.errors import BadRequest, Fatal, NotFound
from omnibus_llm.engine.admission import build_copy
from omnibus_models import families, tiny, torchvision_cpu
from omnibus_models.contract import RecognitionOptions
from omnibus_models.families._recognition_rules import language_code
from omnibus_models.families.speech_to_text import RecognizerDecoder
from omnibus_models.miniature import shrink_config
from omnibus_models.tiny import _wordpiece
from tests.unit.llm.runners.recognition import RATE, make_speech, write_wav

torchvision_cpu.install_operators()

from transformers import CanaryConfig, WhisperForConditionalGeneration  # noqa: E402

SPEECH = make_speech(1.9)
TOKENS = 8
#: Their feature extractors make features and waves, with and without masks.
CLASSES = ["moonshine", "speech_to_text"]
MORE_CLASSES = ["seamless_m4t", "seamless_m4t_v2", "speecht5", "whisper"]


def write_checkpoint(model_type: str, directory: Path) -> Any:
    """Write a small random checkpoint of a class with its usual feature extractor; returns its model."""
    import transformers
    from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES

    cls = getattr(transformers, MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES[model_type])
    model = build_copy(cls, shrink_config(transformers.CONFIG_MAPPING[model_type]()))
    model.generation_config = transformers.GenerationConfig(decoder_start_token_id=5, pad_token_id=0, max_length=64)
    model.save_pretrained(directory)
    _wordpiece.train_tokenizer().save_pretrained(directory)
    extractor = FEATURE_EXTRACTOR_MAPPING_NAMES[model_type]
    getattr(transformers, extractor)().save_pretrained(directory)
    return model


@torch.no_grad()
def check_halves(model_type: str, directory: Path) -> None:
    import transformers

    model = write_checkpoint(model_type, directory)
    features = transformers.AutoFeatureExtractor.from_pretrained(directory)
    heard = np.frombuffer(write_wav(SPEECH)[44:], "<i2").astype(np.float32) / 32768
    inputs = features(heard, sampling_rate=RATE, return_tensors="pt")
    expected = transformers.GenerationMixin.generate(model, **inputs, max_new_tokens=TOKENS, do_sample=False)[0, 1:]

    family = families.family_of(directory)
    encoder, decoder = (family.load(component, directory) for component in family.components)
    item = encoder.prepare(memoryview(write_wav(SPEECH)), "audio")
    [encoded] = encoder.encode([item])
    ids = [*decoder.window_prompt(RecognitionOptions(), True)]
    answer = []
    cache, start = decoder.new_cache(), decoder.start(ids, encoded.embeds)
    hidden = decoder.forward(start.inputs[None], start.positions[:, None], cache, start.attention.mask(0, len(ids)))
    for place in range(len(ids), len(ids) + TOKENS):
        token = decoder.logits(hidden[:, -1]).argmax(-1)
        answer.append(int(token))
        hidden = decoder.forward(decoder.embed(token[None]), torch.tensor([[[place]]]), cache, None)

    assert family.name == "speech_to_text"
    assert encoded.embeds.shape[0] == item.meta["n_tokens"]
    assert answer == expected.tolist()
    assert encoder.parameters + decoder.parameters <= sum(each.numel() for each in model.parameters())


@pytest.mark.numeric
@pytest.mark.parametrize("model_type", CLASSES)
def test_both_halves_write_the_tokens_of_the_whole(model_type: str, tmp_path: Path):
    check_halves(model_type, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("model_type", MORE_CLASSES)
def test_halves_of_other_classes_write_the_tokens_of_the_whole(model_type: str, tmp_path: Path):
    check_halves(model_type, tmp_path)


@pytest.mark.parametrize("component", ["audio", "transcriber"])
def test_a_class_with_prompts_of_its_own_is_refused(component: str, tmp_path: Path):
    CanaryConfig().save_pretrained(tmp_path)

    with pytest.raises(Fatal, match="prompts of CanaryProcessor"):
        families.load_family("speech_to_text").load(component, tmp_path)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("speech_to_text", tmp_path_factory.mktemp("checkpoint") / "whisper")


def test_a_component_has_a_name(whisper: Path):
    with pytest.raises(NotFound, match="audio, transcriber"):
        families.load_family("speech_to_text").load("thinker", whisper)


def test_an_english_model_neither_translates_nor_detects_languages(whisper: Path):
    module = WhisperForConditionalGeneration.from_pretrained(whisper)
    for name in ("lang_to_id", "task_to_id"):
        delattr(module.generation_config, name)
    decoder = RecognizerDecoder(module, whisper)
    start, untimed = module.generation_config.decoder_start_token_id, module.generation_config.no_timestamps_token_id

    assert not decoder.detects
    assert decoder.window_prompt(RecognitionOptions("en"), True) == [start, untimed]
    assert decoder.language_name(RecognitionOptions()) == "english"
    for options, param in ((RecognitionOptions("de"), "language"), (RecognitionOptions(translate=True), "model")):
        with pytest.raises(BadRequest) as raised:
            decoder.require_options(options)
        assert raised.value.param == param


def test_timestamps_enclose_segments_and_are_within_the_window(whisper: Path):
    decoder = families.load_family("speech_to_text").load("transcriber", whisper)
    time = decoder.tokenizer.convert_tokens_to_ids("<|0.00|>")

    segments = decoder.split_segments([time + 5, 7, 8, time + 40, time + 50, 9, time + 90, time + 90, 10], 1.5)

    assert [(segment.begin, segment.end, segment.ids) for segment in segments] == [
        (pytest.approx(0.1), pytest.approx(0.8), (7, 8)),
        (pytest.approx(1.0), 1.5, (9,)),
        (1.5, 1.5, (10,)),
    ]
    assert decoder.split_segments([time, time + 3], 1.5) == []


@pytest.mark.parametrize(("language", "code"), [("en", "en"), ("pt-BR", "pt"), ("German", "de"), ("Mandarin", "zh")])
def test_languages_have_codes_regions_and_names(language: str, code: str):
    assert language_code(language) == code
