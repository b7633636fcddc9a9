"""The encoder service: images, videos and audio to embeddings, batched across requests."""
