"""Training of the models of the small world, from nothing but seeds: ``python -m omnibus_models.world.training``."""
