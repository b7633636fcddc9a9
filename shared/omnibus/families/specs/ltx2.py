"""LTX-2."""

from omnibus.families.specs._templates import video_generation

FAMILY = video_generation("ltx2-tiny")
