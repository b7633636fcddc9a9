"""Training of the models of the small world, from nothing but seeds: ``python -m tools.world_training``."""
