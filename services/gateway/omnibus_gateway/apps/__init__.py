"""Apps at this gateway: the registry, the workers that serve them, and the HTTP routes."""
