"""Stored responses and conversations, which any gateway can retrieve, continue and cancel."""
