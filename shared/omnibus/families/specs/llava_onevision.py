"""LLaVA-OneVision."""

from omnibus.families.specs._llava_style import vision_tower_model

FAMILY = vision_tower_model("llava-onevision-tiny", "image", "video")
