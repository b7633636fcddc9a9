"""LLaVA-1.5."""

from omnibus.families.specs._llava_style import vision_tower_model

FAMILY = vision_tower_model("llava-tiny", "image")
