"""LLaVA-1.5."""

from omnibus.known._plain import towered

FAMILY = towered("llava-tiny", "image")
