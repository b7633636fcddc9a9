"""Qwen-Image."""

from omnibus.families.specs._templates import pictures

FAMILY = pictures("qwen-image-tiny")
