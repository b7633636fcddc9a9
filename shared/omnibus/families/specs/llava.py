"""LLaVA-1.5."""

from omnibus.families.specs._llava_style import towered

FAMILY = towered("llava-tiny", "image")
