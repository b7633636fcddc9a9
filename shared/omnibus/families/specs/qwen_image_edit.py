"""Qwen-Image-Edit."""

from omnibus.families.specs._templates import edits

FAMILY = edits("qwen-image-edit-tiny")
