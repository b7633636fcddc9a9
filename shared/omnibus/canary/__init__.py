"""Candidates: versions of a part of a model on trial. Data and rules, no I/O."""
