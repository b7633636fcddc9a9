"""First paths of a newcomer: documented commands, run and timed.

Run them with ``python -m tests.paths``.
"""
