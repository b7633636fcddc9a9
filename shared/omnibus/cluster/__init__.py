"""The cluster as its plans want it and as its processes report it."""
