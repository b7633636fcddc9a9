"""Decisions to plan anew: the measured load against what runs."""
