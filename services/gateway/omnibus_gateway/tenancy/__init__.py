"""Tenants: their keys, limits and turns."""
