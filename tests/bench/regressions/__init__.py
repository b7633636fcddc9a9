"""Seeded regressions and harmless changes of one executor, and which of them a canary and a bisection find."""
