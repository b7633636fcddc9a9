"""Candidates: tried next to the serving version, judged by the gate, promoted or reverted."""
