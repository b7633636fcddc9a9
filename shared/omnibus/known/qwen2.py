"""Qwen2 and Qwen2.5, text alone."""

from omnibus.known._shape import language

FAMILY = language("qwen2-tiny")
