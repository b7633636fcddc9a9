"""Train the vocoder: a DiT for bands of codes, a BigVGAN for their audio."""

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
    """Bands of ``codes``, float32 [frames, bands]: 1 if active, else -1.

    Band 0 is the one below the pitches of some voices; the bands of the pitches follow.
    """
    result = torch.full((len(codes), omni.MEL), -1.0)
    under, _ = tone_synth.VOICES[voice]
    for place, code in enumerate(codes):
        pitch = tone_synth.code_pitch(code)
        if pitch is not None:
            result[place, 1 + pitch] = 1.0
            result[place, 0] = 1.0 if under else -1.0
    return result.repeat_interleave(FRAMES, 0)


def _lines(random: np.random.Generator, count: int) -> list[tuple[list[int], str]]:
    """Codes of any words, in any voice."""
    voices = random.choice(list(tone_synth.VOICES), count)
    return [
        (tone_synth.speech_codes(" ".join(random.choice(tone_synth.WORDS, _WORDS))), str(voice)) for voice in voices
    ]


def learn_bands(model: Any, seed: int, steps: int = STEPS) -> None:
    """Train the DiT to move noise to bands along straight lines."""
    dit = model.token2wav.code2wav_dit_model
    loop.spread(dit, seed)
    random, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    speakers = omni.voices(omni.tokenizer())

    def loss(step: int) -> Tensor:
        lines = _lines(random, BATCH)
        target = torch.stack([bands(*line) for line in lines])
        guidance_mask = (torch.rand(BATCH, generator=generator) >= _UNGUIDED).float()
        noise = torch.randn(target.shape, generator=generator)
        time = torch.rand(BATCH, generator=generator)
        prediction = dit(
            hidden_states=torch.lerp(noise, target, time[:, None, None]),
            speaker_embedding=_spoken(speakers, lines, "cond", guidance_mask).expand(-1, target.shape[1], -1),
            condition_vector=_spoken(speakers, lines, "ref_mel", guidance_mask),
            quantized_code=torch.tensor([codes for codes, _ in lines]) * guidance_mask[:, None].long(),
            time_step=time,
            apply_cfg=False,
        )
        return nn.functional.mse_loss(prediction, target - noise)

    loop.train("bands", dit.parameters(), loss, steps, RATE)


def _spoken(speakers: dict[str, Any], lines: list[tuple[list[int], str]], name: str, known: Tensor) -> Tensor:
    """Return the speaker features ``name`` of each line, [B, n, bands].

    They are zeros if ``guidance_mask`` is 0.
    """
    features = torch.stack([speakers[voice][name].reshape(-1, omni.MEL) for _, voice in lines])
    return features * known[:, None, None]


def learn_sound(model: Any, seed: int, steps: int = SOUND_STEPS) -> None:
    """Train the BigVGAN on bands as rough as a DiT's, with samples."""
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
        target = ((clear > 0).float() @ table).flatten(1)
        return 100 * nn.functional.mse_loss(vocoder(rough.transpose(1, 2)), target)

    loop.train("sound", vocoder.parameters(), loss, steps, SOUND_RATE)


def _table() -> Tensor:
    """Samples of one frame with an active band, [bands, samples]."""
    time = torch.arange(_FRAME) / tone_synth.OUTPUT_RATE_HERTZ
    loud = max(loudness for _, loudness in tone_synth.VOICES.values())
    under = max(pitch for pitch, _ in tone_synth.VOICES.values())
    table = torch.zeros(omni.MEL, _FRAME)
    table[0] = loud * torch.sin(2 * torch.pi * under * time)
    for place, pitch in enumerate(tone_synth.PITCHES):
        table[1 + place] = tone_synth.LOUDNESS * torch.sin(2 * torch.pi * pitch * time)
    return table
