"""Tiny models that mean something: trained on a small world of coloured shapes, tones, and words spoken in tones.

A picture shows one to three equal shapes on a ground. A sound is a few tones, each low, middle or high, or a
sentence spoken in tones of its own. One model, of Qwen2.5-Omni's architecture, sees, hears, answers and speaks;
another one, of Qwen-Image's, draws what it is told. ``training`` made their weights, which are in ``weights``.

What is in a picture or a sound is told without any model by ``looking`` and ``listening``.
"""

from pathlib import Path

from omnibus import errors

_WEIGHTS = Path(__file__).parent / "weights"
#: The families there are models of.
FAMILIES = ("qwen2_5_omni", "qwen_image")


def checkpoint_directory(family: str) -> Path:
    """Return the directory of the trained checkpoint of ``family``. Raises ``NotFound`` for another family."""
    if family not in FAMILIES:
        raise errors.NotFound(f"no {family!r} was trained on the small world; there is {', '.join(FAMILIES)}")
    return _WEIGHTS / family
