"""Qwen-Image."""

from omnibus.known._shape import pictures

FAMILY = pictures("qwen-image-tiny")
