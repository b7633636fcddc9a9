"""Apps at this gateway: what is registered, the workers that serve it, and the routes that change it."""
