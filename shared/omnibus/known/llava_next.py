"""LLaVA-NeXT."""

from omnibus.known._plain import towered

FAMILY = towered("llava-next-tiny", "image")
