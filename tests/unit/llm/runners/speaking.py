"""Speech of the library's own classes, for comparison."""

from pathlib import Path

import numpy as np
import torch

from omnibus_models import torchvision_cpu

torchvision_cpu.install_operators()

from transformers import AutoTokenizer, VitsModel  # noqa: E402

TEXT = "Good morning. The small cat sat on the mat! Is it here?"
SENTENCES = ("Good morning.", "The small cat sat on the mat!", "Is it here?")


@torch.no_grad()
def speak_by_vits(
    checkpoint: Path, sentences: tuple[str, ...], voice: int, seed: int, speed: float = 1.0
) -> np.ndarray:
    """Return the samples of ``sentences``, each with the next seed."""
    model, tokenizer = VitsModel.from_pretrained(checkpoint).eval(), AutoTokenizer.from_pretrained(checkpoint)
    spoken = []
    for index, sentence in enumerate(sentences):
        torch.manual_seed(seed + index)
        inputs = tokenizer(sentence, return_tensors="pt")
        spoken.append(model(**inputs, speaker_id=voice, speaking_rate=speed).waveform[0].numpy())
    return np.concatenate(spoken)
