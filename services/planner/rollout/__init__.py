"""Steps from one plan epoch to the next, within the GPUs at hand, and back where they fail."""
