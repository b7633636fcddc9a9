"""Tenants: who asks, what they may, and whose turn it is."""
