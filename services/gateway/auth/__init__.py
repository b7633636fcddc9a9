"""API keys, the admin token and origins of web pages: access to a gateway."""
