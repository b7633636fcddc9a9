"""HTTP connections, requests and responses, whatever their route."""
