"""LLaVA-NeXT."""

from omnibus.families.specs._llava_style import towered

FAMILY = towered("llava-next-tiny", "image")
