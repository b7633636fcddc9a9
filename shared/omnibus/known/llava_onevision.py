"""LLaVA-OneVision."""

from omnibus.known._plain import towered

FAMILY = towered("llava-onevision-tiny", "image", "video")
