"""The gateway: OpenAI-shaped HTTP in, recorded invocations out to the bus."""
