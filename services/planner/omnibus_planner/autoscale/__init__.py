"""Decisions to plan again: the measured load against the running plan."""
