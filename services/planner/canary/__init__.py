"""Candidates on their way: tried beside what serves, judged by the gate, promoted or taken back."""
