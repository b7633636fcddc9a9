"""Access to a gateway: API keys, the admin token and origins of web pages."""
