"""The OpenAI routes beside chat, one module for each group; their shapes are in ``services.gateway.openai``."""
