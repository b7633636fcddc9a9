"""Ollama's API: a dialect of chats and embeddings, for clients of that server."""
