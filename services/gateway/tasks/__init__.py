"""Requests to composite tasks, and their outputs to responses."""
