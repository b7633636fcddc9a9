"""Llama 3.2 Vision."""

from omnibus.families.specs._templates import vision_language

FAMILY = vision_language(
    "llama-3.2-vision-tiny",
    "image",
    weights={
        "vision": (
            "vision_model.",
            "model.vision_model.",
            "multi_modal_projector.",
            "model.multi_modal_projector.",
        ),
        "thinker": ("model.", "lm_head.", "language_model."),
    },
)
