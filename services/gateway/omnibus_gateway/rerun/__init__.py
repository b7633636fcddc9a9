"""Recorded requests that run again: for replays, candidates of models, and new versions of apps."""
