"""Stored responses and conversations: made here or at another gateway, retrieved, continued and cancelled anywhere."""
