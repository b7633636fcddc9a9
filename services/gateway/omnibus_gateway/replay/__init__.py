"""Recorded invocations: their history, and their replay."""
