"""Voice conversations over WebSockets, for every chat model."""
