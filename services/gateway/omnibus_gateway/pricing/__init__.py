"""Prices of requests by the plan's prices: their usage, and quotes before they run."""
