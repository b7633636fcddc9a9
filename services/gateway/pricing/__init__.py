"""Prices of requests: their usage by the plan's prices, and quotes before they run."""
