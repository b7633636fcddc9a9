"""Qwen-Image-Edit."""

from omnibus.families.specs._templates import image_editing

FAMILY = image_editing("qwen-image-edit-tiny")
