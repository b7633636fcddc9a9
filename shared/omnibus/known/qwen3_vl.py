"""Qwen3-VL."""

from omnibus.known._shape import vision_language

FAMILY = vision_language(
    "qwen3-vl-tiny",
    "image",
    "video",
    weights={"vision": ("visual.", "model.visual."), "thinker": ("model.", "lm_head.", "language_model.")},
)
