"""Qwen2 and Qwen2.5, text alone."""

from omnibus.families.specs._templates import language

FAMILY = language("qwen2-tiny")
