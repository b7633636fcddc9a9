"""To sound: a DiT learns the bands of each code, and a BigVGAN the sound of the bands."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from omnibus_models.world import tone_synth
from tools.world_training import loop, omni

STEPS, BATCH, RATE = 1500, 8, 1.5e-3
SOUND_STEPS, SOUND_BATCH, SOUND_RATE = 800, 4, 2e-3
_CROP = 18  # frames
FRAMES = 2  # of a code
_WORDS = 8  # of a line that is learnt
_UNGUIDED = 0.15  # lines that say neither codes nor voice
_FRAME = tone_synth.CODE_SAMPLES // FRAMES


def bands(codes: list[int], voice: str) -> Tensor:
    """The bands of ``codes``, float32 [frames, bands]: 1 where it sounds and -1 where not.

    Band 0 is what sounds under the pitches of some voices; the bands of the pitches follow.
    """
    found = torch.full((len(codes), omni.MEL), -1.0)
    under, _ = tone_synth.VOICES[voice]
    for place, code in enumerate(codes):
        pitch = tone_synth.code_pitch(code)
        if pitch is not None:
            found[place, 1 + pitch] = 1.0
            found[place, 0] = 1.0 if under else -1.0
    return found.repeat_interleave(FRAMES, 0)


def _lines(random: np.random.Generator, count: int) -> list[tuple[list[int], str]]:
    """Codes of any words, in any voice."""
    voices = random.choice(list(tone_synth.VOICES), count)
    return [
        (tone_synth.speech_codes(" ".join(random.choice(tone_synth.WORDS, _WORDS))), str(voice)) for voice in voices
    ]


def learn_bands(model: Any, seed: int, steps: int = STEPS) -> None:
    """Train the DiT to go from noise to the bands of codes along straight lines."""
    dit = model.token2wav.code2wav_dit_model
    loop.spread(dit, seed)
    random, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    speakers = omni.voices(omni.tokenizer())

    def loss(step: int) -> Tensor:
        lines = _lines(random, BATCH)
        target = torch.stack([bands(*line) for line in lines])
        known = (torch.rand(BATCH, generator=generator) >= _UNGUIDED).float()
        noise = torch.randn(target.shape, generator=generator)
        time = torch.rand(BATCH, generator=generator)
        found = dit(
            hidden_states=torch.lerp(noise, target, time[:, None, None]),
            speaker_embedding=_spoken(speakers, lines, "cond", known).expand(-1, target.shape[1], -1),
            condition_vector=_spoken(speakers, lines, "ref_mel", known),
            quantized_code=torch.tensor([codes for codes, _ in lines]) * known[:, None].long(),
            time_step=time,
            apply_cfg=False,
        )
        return nn.functional.mse_loss(found, target - noise)

    loop.train("bands", dit.parameters(), loss, steps, RATE)


def _spoken(speakers: dict[str, Any], lines: list[tuple[list[int], str]], name: str, known: Tensor) -> Tensor:
    """Return the features ``name`` of the speaker of each line, [B, n, bands]; zeros where ``known`` is 0."""
    found = torch.stack([speakers[voice][name].reshape(-1, omni.MEL) for _, voice in lines])
    return found * known[:, None, None]


def learn_sound(model: Any, seed: int, steps: int = SOUND_STEPS) -> None:
    """Train the BigVGAN on bands that are as rough as those of a DiT, and on the samples that belong to them."""
    vocoder = model.token2wav.code2wav_bigvgan_model
    random, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    table = _table()

    def loss(step: int) -> Tensor:
        clear = torch.stack([bands(*line) for line in _lines(random, SOUND_BATCH)])
        begin = int(random.integers(0, clear.shape[1] - _CROP + 1))
        clear = clear[:, begin : begin + _CROP]
        on = 0.8 + 1.7 * torch.rand(len(clear), 1, 1, generator=generator)
        off = 0.6 + 1.2 * torch.rand(len(clear), 1, 1, generator=generator)
        rough = torch.where(clear > 0, on, -off) + 0.1 * torch.randn(clear.shape, generator=generator)
        wanted = ((clear > 0).float() @ table).flatten(1)
        return 100 * nn.functional.mse_loss(vocoder(rough.transpose(1, 2)), wanted)

    loop.train("sound", vocoder.parameters(), loss, steps, SOUND_RATE)


def _table() -> Tensor:
    """The samples of one frame in which a band sounds, [bands, samples]."""
    time = torch.arange(_FRAME) / tone_synth.OUTPUT_RATE_HERTZ
    loud = max(loudness for _, loudness in tone_synth.VOICES.values())
    under = max(pitch for pitch, _ in tone_synth.VOICES.values())
    table = torch.zeros(omni.MEL, _FRAME)
    table[0] = loud * torch.sin(2 * torch.pi * under * time)
    for place, pitch in enumerate(tone_synth.PITCHES):
        table[1 + place] = tone_synth.LOUDNESS * torch.sin(2 * torch.pi * pitch * time)
    return table
