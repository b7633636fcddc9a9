"""Continuous batching of language models with transformers."""
