"""The LLM service: thinkers and talkers, with continuous batching."""
