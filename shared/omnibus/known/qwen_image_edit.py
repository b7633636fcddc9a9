"""Qwen-Image-Edit."""

from omnibus.known._shape import edits

FAMILY = edits("qwen-image-edit-tiny")
