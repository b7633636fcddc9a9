"""Text-to-speech models in two parts make the samples of their class."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from omnibus.errors import BadRequest, Fatal, NotFound
from omnibus_engines import vocoder_calls
from omnibus_models import families, tiny
from omnibus_models.contract import SpeakingOptions, VocoderCall
from tests.unit.models.speech_checkpoints import VOICES, write_checkpoint

import transformers  # isort: skip

TEXT, SEED = "the small cat sat on the mat", 3
CLOSE = 1e-4


def speak_whole(model_type: str, directory: Path) -> Tensor:
    """Return the samples of ``TEXT`` by the class alone."""
    return _WHOLE[model_type](directory).reshape(-1).clamp(-1, 1)


def _load_model(name: str, directory: Path) -> Any:
    model = getattr(transformers, name).from_pretrained(directory, attn_implementation="eager").eval()
    torch.manual_seed(SEED)
    return model


def _read_text(directory: Path, text: str = TEXT) -> dict[str, Any]:
    made = transformers.AutoTokenizer.from_pretrained(directory)(text, return_tensors="pt")
    return {"input_ids": made["input_ids"], "attention_mask": made["attention_mask"]}


def _speak_bark(directory: Path) -> Tensor:
    inputs = transformers.AutoProcessor.from_pretrained(directory)(TEXT)
    made: Tensor = _load_model("BarkModel", directory).generate(**inputs)
    return made


def _speak_csm(directory: Path) -> Tensor:
    inputs = _read_text(directory, f"[1]{TEXT}")
    [made] = _load_model("CsmForConditionalGeneration", directory).generate(**inputs, output_audio=True)
    return made  # type: ignore[no-any-return]


def _speak_dia(directory: Path) -> Tensor:
    processor = transformers.AutoProcessor.from_pretrained(directory)
    inputs = processor(text=f"[S2] {TEXT}", return_tensors="pt")
    made: Tensor = processor.decode(_load_model("DiaForConditionalGeneration", directory).generate(**inputs))
    return made


def _speak_fastspeech(directory: Path) -> Tensor:
    vocoder = _load_model("FastSpeech2ConformerHifiGan", directory / "vocoder")
    made: Tensor = vocoder(_load_model("FastSpeech2ConformerModel", directory)(**_read_text(directory)).spectrogram)
    return made


def _speak_musicgen(directory: Path) -> Tensor:
    made: Tensor = _load_model("MusicgenForConditionalGeneration", directory).generate(**_read_text(directory))
    return made


def _speak_speecht5(directory: Path) -> Tensor:
    import numpy as np

    vocoder = _load_model("SpeechT5HifiGan", directory / "vocoder")
    voice = torch.from_numpy(np.load(directory / "speaker_embeddings" / f"{VOICES[1]}.npy"))[None]
    model = _load_model("SpeechT5ForTextToSpeech", directory)
    made: Tensor = model.generate_speech(_read_text(directory)["input_ids"], voice, vocoder=vocoder)
    return made


def _speak_vits(directory: Path) -> Tensor:
    made: Tensor = _load_model("VitsModel", directory)(**_read_text(directory), speaker_id=1).waveform
    return made


_WHOLE: dict[str, Callable[[Path], Tensor]] = {
    "bark": _speak_bark,
    "csm": _speak_csm,
    "dia": _speak_dia,
    "fastspeech2_conformer": _speak_fastspeech,
    "musicgen": _speak_musicgen,
    "speecht5": _speak_speecht5,
    "vits": _speak_vits,
}
#: A class whose vocoder is another model, and one that streams codes.
TYPICAL = ("csm", "speecht5")


@torch.no_grad()
def check_parts(model_type: str, directory: Path) -> None:
    write_checkpoint(model_type, directory)
    expected = speak_whole(model_type, directory)
    family = families.family_of(directory)
    speaker, vocoder = (family.load(component, directory) for component in family.components)
    calls: list[VocoderCall] = []
    speaker.speak(TEXT, SpeakingOptions(speaker.voices[-1]), SEED, calls.append, lambda: None)
    sent = [vocoder_calls.unpack_call(*vocoder_calls.pack_call(call)) for call in calls]

    samples = vocoder.synthesize(sent[-1])

    assert family.name == "text_to_speech"
    assert samples.shape == expected.shape
    assert len(samples) > 500
    assert float((samples - expected).abs().max()) < CLOSE
    assert float(samples.std()) > 100 * CLOSE
    weights = {name: each.numel() for name, each in speaker.module.named_parameters()}
    assert not [name for name in weights if name.startswith(tuple(speaker.row.parts) or "vocoder")]
    if len(sent) > 1:
        codes = torch.cat([call.args[0] for call in sent[:-1]], -1)
        assert torch.equal(codes, sent[-1].args[0][..., : codes.shape[-1]])
        early = vocoder.synthesize(VocoderCall([codes], {}))
        assert float((early - samples[: len(early)]).abs().max()) < CLOSE


@pytest.mark.numeric
@pytest.mark.parametrize("model_type", TYPICAL)
def test_both_parts_make_the_samples_of_the_whole(model_type: str, tmp_path: Path):
    check_parts(model_type, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("model_type", sorted({*_WHOLE} - {*TYPICAL}))
def test_parts_of_other_classes_make_the_samples_of_the_whole(model_type: str, tmp_path: Path):
    check_parts(model_type, tmp_path)


@pytest.fixture(scope="module")
def vits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("text_to_speech", tmp_path_factory.mktemp("checkpoint") / "vits")


def test_voices_are_listed_and_those_of_openai_are_mapped(vits: Path):
    speaker = families.load_family("text_to_speech").load("speaker", vits)

    assert speaker.voices == ["0", "1", "2"]
    assert speaker.make_inputs(TEXT, SpeakingOptions("ash"))["speaker_id"] == 1
    for voice in ("3", "", "anna"):
        with pytest.raises(BadRequest, match="use one of 0, 1, 2") as raised:
            speaker.require_options(SpeakingOptions(voice))
        assert raised.value.param == "voice"


def test_a_text_is_split_at_the_ends_of_sentences(vits: Path):
    speaker = families.load_family("text_to_speech").load("speaker", vits)

    assert speaker.split_text("Is it 3.5 cats? Yes!\nno . . 猫。end") == ["Is it 3.5 cats?", "Yes!", "no .", "end"]
    with pytest.raises(BadRequest, match="any character"):
        speaker.split_text("123 ... 。")


def test_a_vocoder_that_is_another_checkpoint_is_named_if_it_is_missing(tmp_path: Path):
    transformers.SpeechT5Config(vocab_size=400, architectures=["SpeechT5ForTextToSpeech"]).save_pretrained(tmp_path)

    with pytest.raises(Fatal, match=r"microsoft/speecht5_hifigan.*vocoder"):
        families.family_of(tmp_path).load("vocoder", tmp_path)
    with pytest.raises(NotFound, match="speaker, vocoder"):
        families.family_of(tmp_path).load("thinker", tmp_path)


@pytest.mark.behaviour(
    "transformers 5.19",
    "VitsTokenizer with is_uroman drops all characters of other scripts with only a line of its log if uroman is missing",
    "refuses the checkpoint by the name of the library",
    source="tokenization_vits.prepare_for_tokenization calls logger.warning and returns the text without those characters",
)
@pytest.mark.parametrize(("option", "library"), [("is_uroman", "uroman"), ("phonemize", "phonemizer")])
def test_a_library_that_the_text_needs_is_named_if_it_is_missing(vits: Path, tmp_path: Path, option: str, library: str):
    options = {"phonemize": False, option: True}
    transformers.VitsTokenizer(vits / "vocab.json", **options).save_pretrained(tmp_path)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((vits / name).read_bytes())

    with pytest.raises(Fatal, match=library):
        families.load_family("text_to_speech").load("speaker", tmp_path)


@pytest.mark.parametrize(
    ("data", "size"),
    [({}, 0), ({"args": [{"dtype": "float32", "shape": [2]}], "named": {}, "partial": False}, 12)],
)
def test_what_is_not_a_packed_call_is_refused(data: Any, size: int):
    import numpy as np

    with pytest.raises(ValueError, match="vocoder"):
        vocoder_calls.unpack_call(data, np.zeros(size, np.uint8))
