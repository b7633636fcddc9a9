"""Qwen2 and Qwen2.5, text alone."""

from omnibus.families.specs._templates import language_model

FAMILY = language_model("qwen2-tiny")
