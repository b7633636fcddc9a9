"""From one plan epoch to the next, within the GPUs at hand, and back where it fails."""
