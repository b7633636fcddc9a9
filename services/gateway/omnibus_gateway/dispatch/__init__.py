"""Invocations in flight: sent, moved, resumed, retried, captured and played back."""
