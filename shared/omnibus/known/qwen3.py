"""Qwen3, text alone."""

from omnibus.known._shape import language

FAMILY = language("qwen3-tiny")
