"""Conversations with the ``anthropic`` client, which checks each answer strictly."""
