"""Facts about classes of text-to-speech models that the library does not have."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import transformers

from omnibus.errors import Fatal


class SpeechClass(NamedTuple):
    """One class by its ``model_type``.

    ``entry`` is the vocoder's function, a path in the model, and ``parts`` are the paths of its weights. ``other`` is
    the class of a vocoder that is another model, usually ``other_checkpoint``. ``processor`` is whether texts need the
    class's processor, not only its tokenizer. ``prompt`` is the format of a text, with the ``voices`` that it can name.
    ``sentences`` is whether sentences may be spoken one by one: their voice is fixed. ``streams`` is whether a
    ``streamer`` gets frames of codes. ``options`` are more arguments. ``hollow`` is a part whose configuration the
    class reads while its vocoder is loaded. ``rate`` is samples per second, if no configuration has them.
    """

    cls: str
    entry: str = ""
    parts: Sequence[str] = ()
    other: str = ""
    other_checkpoint: str = ""
    processor: bool = False
    prompt: str = "{text}"
    voices: Sequence[str] = ()
    sentences: bool = False
    streams: bool = False
    options: Mapping[str, Any] = {}
    hollow: str = ""
    rate: int = 0


_ESPNET = "espnet/fastspeech2_conformer_hifigan"
CLASSES: Mapping[str, SpeechClass] = {
    "bark": SpeechClass("BarkModel", "codec_decode", ["codec_model"], processor=True),
    "csm": SpeechClass(
        "CsmForConditionalGeneration", "codec_model.decode", ["codec_model"],
        prompt="[{voice}]{text}", voices=["0", "1"], streams=True, options={"output_audio": True},
        hollow="depth_decoder",
    ),
    "dia": SpeechClass(
        "DiaForConditionalGeneration", "decode", other="DacModel", other_checkpoint="descript/dac_44khz",
        processor=True, prompt="[{voice}] {text}", voices=["S1", "S2"],
    ),
    "fastspeech2_conformer": SpeechClass(
        "FastSpeech2ConformerModel", other="FastSpeech2ConformerHifiGan", other_checkpoint=_ESPNET,
        sentences=True, rate=22_050,
    ),
    "fastspeech2_conformer_with_hifigan": SpeechClass(
        "FastSpeech2ConformerWithHifiGan", "vocoder", ["vocoder"], sentences=True, rate=22_050
    ),
    "musicgen": SpeechClass("MusicgenForConditionalGeneration", "audio_encoder.decode", ["audio_encoder"]),
    "musicgen_melody": SpeechClass(
        "MusicgenMelodyForConditionalGeneration", "audio_encoder.decode", ["audio_encoder"], hollow="decoder"
    ),
    "seamless_m4t": SpeechClass("SeamlessM4TForTextToSpeech", "vocoder", ["vocoder"], sentences=True),
    "seamless_m4t_v2": SpeechClass("SeamlessM4Tv2ForTextToSpeech", "vocoder", ["vocoder"], sentences=True),
    "speecht5": SpeechClass(
        "SpeechT5ForTextToSpeech", other="SpeechT5HifiGan", other_checkpoint="microsoft/speecht5_hifigan",
        sentences=True,
    ),
    "vits": SpeechClass("VitsModel", "decoder", ["decoder"], sentences=True),
}  # fmt: skip


def find_speech_class(config: Any) -> tuple[Any, SpeechClass]:
    """Return the class of the library for ``config``, and its row. Raises ``Fatal`` if there is none."""
    row = CLASSES.get(config.model_type)
    if row is None:
        raise Fatal(f"text to speech of the type {config.model_type!r} is not served; use one of {', '.join(CLASSES)}")
    return getattr(transformers, row.cls), row
