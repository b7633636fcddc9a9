"""Qwen2-VL."""

from omnibus.families.specs._templates import vision_language

FAMILY = vision_language(
    "qwen2-vl-tiny",
    "image",
    "video",
    weights={"vision": ("visual.", "model.visual."), "thinker": ("model.", "lm_head.", "language_model.")},
)
