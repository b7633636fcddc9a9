"""First paths of a newcomer, with commands as the documentation has them, run and timed: ``python -m tests.paths``."""
