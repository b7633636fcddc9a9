"""Seeded regressions and harmless changes, to test canaries and bisections.

Each changes one executor.
"""
