"""LLaVA-OneVision."""

from omnibus.families.specs._llava_style import towered

FAMILY = towered("llava-onevision-tiny", "image", "video")
