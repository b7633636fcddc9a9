"""Qwen-Image."""

from omnibus.families.specs._templates import image_generation

FAMILY = image_generation("qwen-image-tiny")
