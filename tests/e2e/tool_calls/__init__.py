"""Tools, structured output and the sampler's other fields through real services."""
