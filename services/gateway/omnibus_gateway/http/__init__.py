"""HTTP connections, requests and responses for all routes."""
