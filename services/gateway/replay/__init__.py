"""Recorded invocations: their history, and running them again."""
