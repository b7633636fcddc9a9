"""HTTP routes, one module for each group; their shapes are in ``omnibus_gateway.openai``."""
