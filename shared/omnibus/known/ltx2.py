"""LTX-2."""

from omnibus.known._shape import films

FAMILY = films("ltx2-tiny")
