"""The encoder service: images, videos and sounds to embeddings, batched over requests."""
