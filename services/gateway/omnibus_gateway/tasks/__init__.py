"""Composite tasks: from requests to task inputs, and from outputs to responses."""
