"""Declarations of models, completed and checked."""
