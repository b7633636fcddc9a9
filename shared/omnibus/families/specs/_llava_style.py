"""Shared declaration of the families whose checkpoints name vision tower, projector and language model as below."""

from typing import Any

from omnibus.families.specs._templates import FamilyDeclaration, vision_language

_TOWER = ("vision_tower.", "multi_modal_projector.", "image_newline")
_LANGUAGE = ("language_model.",)


def vision_tower_model(tiny: str, *modalities: str, **more: Any) -> FamilyDeclaration:
    """A vision tower and a language model, by the names of their tensors on the hub and as the library saves them."""
    return vision_language(
        tiny,
        *modalities,
        weights={
            "vision": (*_TOWER, *(f"model.{name}" for name in _TOWER)),
            "thinker": (*_LANGUAGE, *(f"model.{name}" for name in _LANGUAGE), "lm_head."),
        },
        **more,
    )
