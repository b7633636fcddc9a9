"""How the models of the small world were made, from nothing but seeds: ``python -m omnibus_models.world.training``."""
