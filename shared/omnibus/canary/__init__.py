"""Candidates: other versions of a part of a model that have to prove themselves. Data and rules, no I/O."""
