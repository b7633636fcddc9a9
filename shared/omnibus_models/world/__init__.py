"""Tiny models that mean something: trained on a small world of coloured shapes, tones, and words spoken in tones.

A picture shows one to three equal shapes on a ground. A sound is a few tones, each low, middle or high, or a
sentence spoken in tones of its own. One model, of Qwen-Image's architecture, draws what it is told; ``training`` made
its weights, which are in ``weights``. Another one, of Qwen2.5-Omni's, can be trained to see, hear, answer and speak;
its weights are not here.

What is in a picture or a sound is told without any model by ``looking`` and ``listening``.
"""

from pathlib import Path

from omnibus import errors

_WEIGHTS = Path(__file__).parent / "weights"
#: The families there are models of.
FAMILIES = ("qwen_image",)


def checkpoint(family: str) -> Path:
    """Where the trained checkpoint of ``family`` is. Raises ``NotFound`` for another family."""
    if family not in FAMILIES:
        raise errors.NotFound(f"no {family!r} was trained on the small world; there is {', '.join(FAMILIES)}")
    return _WEIGHTS / family
