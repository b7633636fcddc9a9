"""Qwen3, text alone."""

from omnibus.families.specs._templates import language_model

FAMILY = language_model("qwen3-tiny")
