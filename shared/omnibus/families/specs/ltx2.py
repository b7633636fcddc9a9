"""LTX-2."""

from omnibus.families.specs._templates import films

FAMILY = films("ltx2-tiny")
