"""Who may use a gateway: API keys, the admin token, origins of web pages."""
