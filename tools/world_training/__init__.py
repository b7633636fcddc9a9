"""Training of the small world's models from seeds alone: ``python -m tools.world_training``."""
