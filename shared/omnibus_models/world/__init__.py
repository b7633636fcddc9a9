"""Tiny trained models of a small world: coloured shapes, tones, and words spoken in tones.

An image shows one to three equal shapes on a ground. Audio is a few tones, each low, middle or high, or a sentence
spoken in other tones. One model, of Qwen2.5-Omni's architecture, reads images and audio, answers and speaks. Another
one, of Qwen-Image's, generates images. ``tools.world_training`` trained their ``weights``.

``image_oracle`` and ``audio_oracle`` recognise the contents of an image or audio without a model.
"""

from pathlib import Path

from omnibus import errors

_WEIGHTS = Path(__file__).parent / "weights"
#: Families with a trained model.
FAMILIES = ("qwen2_5_omni", "qwen_image")


def checkpoint_directory(family: str) -> Path:
    """Return the directory of the trained checkpoint of ``family``. Raises ``NotFound`` for another family."""
    if family not in FAMILIES:
        raise errors.NotFound(f"no {family!r} was trained on the small world; there is {', '.join(FAMILIES)}")
    return _WEIGHTS / family
