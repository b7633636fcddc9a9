"""Qwen3, text alone."""

from omnibus.families.specs._templates import language

FAMILY = language("qwen3-tiny")
