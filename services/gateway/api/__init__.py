"""HTTP routes, one module for each group; their shapes are in ``services.gateway.openai``."""
