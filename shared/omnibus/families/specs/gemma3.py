"""Gemma 3. The projector belongs to the language model, so that models of all sizes can share one encoder."""

from omnibus.families.specs._templates import vision_language

FAMILY = vision_language(
    "gemma3-tiny",
    "image",
    weights={
        "vision": ("vision_tower.", "model.vision_tower."),
        "thinker": ("model.", "lm_head.", "language_model.", "multi_modal_projector."),
    },
)
